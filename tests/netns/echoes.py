#!/usr/bin/env python3
"""Keeps a connection to an echo open through each of some forwards, and uses it all the time.

    echoes.py SECONDS FIRST-PORT COUNT

A connection that is reset is made again. Prints for each port `PORT RESETS LONGEST`: the longest
time in seconds from one answer to the next, over whichever connection. Ends with 1 if one was
without an answer at the end.
"""

import socket
import sys
import threading
import time

PAUSE_SECONDS = 0.05


def use(port, until, results):
    resets, longest, last, connection = 0, 0.0, None, None
    while time.monotonic() < until:
        try:
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", port), timeout=60)
                connection.sendall(b"echo\n")
            connection.sendall(b"x")
            if connection.recv(1) != b"x":
                raise ConnectionResetError
        except OSError:
            resets += connection is not None
            connection = None
            time.sleep(PAUSE_SECONDS)
            continue
        now = time.monotonic()
        longest, last = max(longest, now - (last or now)), now
        time.sleep(PAUSE_SECONDS)
    results[port] = (resets, longest, last)


def main():
    seconds, first, count = (int(text) for text in sys.argv[1:])
    until, results = time.monotonic() + seconds, {}
    ports = range(first, first + count)
    threads = [threading.Thread(target=use, args=(port, until, results)) for port in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for port in ports:
        resets, longest, last = results[port]
        print(port, resets, f"{longest:.2f}")
        if last is None or until - last > 1:
            sys.exit(1)


main()
