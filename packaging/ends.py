#!/usr/bin/env python3
"""The programs at either end of the tunnels of packaging/tour.sh.

    origin PORT           answers each TCP connection with the source that its PROXY protocol header
                          (version 2) names, or `none`
    echo PORT             sends back what a TCP connection sends
    close PORT            closes each TCP connection without a byte
    echoed PORT SECONDS   sends a numbered line every 100 ms through 127.0.0.1:PORT; exits with 0 if each
                          comes back once, in order, within 20 s
"""

import socket
import struct
import sys
import threading
import time

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PATIENCE_SECONDS = 20


def serve(port, answer):
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def origin(connection):
    connection.settimeout(1)
    try:
        header = connection.recv(16, socket.MSG_WAITALL)
    except TimeoutError:
        header = b""
    source = "none"
    if header.startswith(SIGNATURE):
        (length,) = struct.unpack(">H", header[14:])
        addresses = connection.recv(length, socket.MSG_WAITALL)
        source = socket.inet_ntop(socket.AF_INET, addresses[:4])
    connection.sendall(source.encode() + b"\n")
    connection.close()


def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()


def echoed(port, seconds):
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    answers = connection.makefile()
    for number in range(seconds * 10):
        connection.sendall(b"%d\n" % number)
        answer = answers.readline()
        if answer != f"{number}\n":
            sys.exit(f"line {number} came back as {answer!r}")
        time.sleep(0.1)


program, port = sys.argv[1], int(sys.argv[2])
if program == "echoed":
    echoed(port, int(sys.argv[3]))
else:
    serve(port, {"origin": origin, "echo": echo, "close": socket.socket.close}[program])
