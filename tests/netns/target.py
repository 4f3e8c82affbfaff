#!/usr/bin/env python3
"""The far end of tests/netns.sh: a TCP service whose clients say in their first line what they want.

    swap N          N random bytes out, everything in, both at once; after the client's end the
                    SHA-256 of what was sent and of what was received, then the end
    answer N        as swap, but nothing goes out before the client's end has come in
    speak TOKEN N   N random bytes out and the end of them at once; what comes in is judged
    listen TOKEN    what comes in is judged
    stall           never reads again
    flood TOKEN     sends for as long as someone takes it
    reset           a reset
    echo            what comes in goes out
    report TOKEN    what is known under the token, as JSON: bytes, sha256, ended (eof or reset)

Knows no tunnel. Listens on every IPv4 and IPv6 address; ends when it is killed.
"""

import hashlib
import json
import os
import socket
import struct
import sys
import threading

# No client of ours is silent for longer, unless it is meant to be (stall, flood).
PATIENCE_SECONDS = 300
PIECE_BYTES = 256 << 10

judged = {}
counting = threading.Lock()


def send_random(connection, size):
    """Sends `size` fresh random bytes; their SHA-256."""
    digest = hashlib.sha256()
    while size:
        piece = os.urandom(min(size, PIECE_BYTES))
        digest.update(piece)
        connection.sendall(piece)
        size -= len(piece)
    return digest.digest()


def receive(connection, note=None):
    """Receives to the end, or to the reset, which is noted; the SHA-256 of all of it."""
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
        with counting:  # floods of one token are counted together
            note["bytes"] += sent


def reset(connection):
    """Closes in the way that sends RST: lingering is on, for no time."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def echo(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while piece := connection.recv(PIECE_BYTES):
        connection.sendall(piece)


def request_line(connection):
    """The first line, byte by byte, so that nothing behind it is swallowed."""
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
            pass  # the client sees it too, and judges


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
