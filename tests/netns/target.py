#!/usr/bin/env python3
"""Serves the far end of tests/netns.sh over TCP; a client's first line is its request.

    swap N          sends N random bytes while reading everything; after the client's end sends the
                    SHA-256 of what was sent and of what was received, then closes
    answer N        like swap, but sends only after the client's end
    speak TOKEN N   sends N random bytes and a half-close at once; records what it receives
    listen TOKEN    records what it receives
    stall           never reads again
    flood TOKEN     sends for as long as it is read
    reset           resets the connection
    echo            echoes
    report TOKEN    sends the record of the token, as JSON: bytes, sha256, ended (eof or reset)

Knows no tunnel. Listens on every IPv4 and IPv6 address; ends when it is killed.
"""

import hashlib
import json
import os
import socket
import struct
import sys
import threading

# Longer than any client of ours is silent, unless on purpose (stall, flood).
PATIENCE_SECONDS = 300
PIECE_BYTES = 256 << 10

judged = {}
counting = threading.Lock()


def send_random(connection, size):
    """Sends `size` fresh random bytes; returns their SHA-256."""
    digest = hashlib.sha256()
    while size:
        piece = os.urandom(min(size, PIECE_BYTES))
        digest.update(piece)
        connection.sendall(piece)
        size -= len(piece)
    return digest.digest()


def receive(connection, note=None):
    """Receives to the end or a reset, which it records; returns the SHA-256 of everything."""
    note = {} if note is None else note
    digest, count = hashlib.sha256(), 0
    note.update(bytes=0, ended=None)
    try:
        while piece := connection.recv(PIECE_BYTES):
            digest.update(piece)
            count += len(piece)
            note["bytes"] = count
        note["ended"] = "eof"
    except ConnectionResetError:
        note["ended"] = "reset"
    note["sha256"] = digest.hexdigest()
    return digest.digest()


def swap(connection, size):
    sent = []
    sender = threading.Thread(target=lambda: sent.append(send_random(connection, size)))
    sender.start()
    received = receive(connection)
    sender.join()
    connection.sendall(sent[0] + received)


def answer(connection, size):
    received = receive(connection)
    connection.sendall(send_random(connection, size) + received)


def speak(connection, token, size):
    send_random(connection, size)
    connection.shutdown(socket.SHUT_WR)
    receive(connection, judged.setdefault(token, {}))


def flood(connection, token):
    piece = os.urandom(PIECE_BYTES)
    note = judged.setdefault(token, {"bytes": 0})
    connection.settimeout(None)
    while True:
        sent = connection.send(piece)
        with counting:  # floods with the same token are added up
            note["bytes"] += sent


def reset(connection):
    """Closes with RST: SO_LINGER on, with a timeout of zero."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def echo(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while piece := connection.recv(PIECE_BYTES):
        connection.sendall(piece)


def request_line(connection):
    """Reads the first line byte by byte, so that nothing after it is consumed."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            return []
        line += byte
    return line.decode().split()


def serve(connection):
    with connection:
        connection.settimeout(PATIENCE_SECONDS)
        try:
            match request_line(connection):
                case ["swap", size]:
                    swap(connection, int(size))
                case ["answer", size]:
                    answer(connection, int(size))
                case ["speak", token, size]:
                    speak(connection, token, int(size))
                case ["listen", token]:
                    receive(connection, judged.setdefault(token, {}))
                case ["stall"]:
                    threading.Event().wait()
                case ["flood", token]:
                    flood(connection, token)
                case ["reset"]:
                    reset(connection)
                case ["echo"]:
                    echo(connection)
                case ["report", token]:
                    connection.sendall(json.dumps(judged.get(token, {})).encode())
        except OSError:
            pass  # the client sees it too, and decides


def main():
    port = int(sys.argv[1])
    listener = socket.create_server(
        ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512
    )
    print(f"target: listening on {port}", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


main()
