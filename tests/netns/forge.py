#!/usr/bin/env python3
"""Sends datagrams that look like QUIC's and are none, each from a port of its own.

    forge.py ADDRESS PORT ID COUNT    ID: the server ID in their connection IDs, as 0x and 16 digits,
                                      or - for random IDs that have none

Knows no tunnel.
"""

import os
import socket
import struct
import sys
import time

# Few enough for a server to take them all.
A_SECOND = 5_000
PORTS = 50


def initial(server):
    """An Initial packet (RFC 9000 17.2.2) whose payload is noise."""
    if server is None:
        first = bytes([0xE0 | os.urandom(1)[0]]) + os.urandom(19)
    else:
        # QUIC-LB's configuration 0: the server ID follows the first byte.
        first = bytes([os.urandom(1)[0] & 0x1E]) + server + os.urandom(11)
    rest = os.urandom(1_140)
    head = b"\xc3" + struct.pack(">I", 1) + bytes([20]) + first + bytes([8]) + os.urandom(8)
    return head + b"\0" + struct.pack(">H", 0x4000 | len(rest)) + rest


def main():
    address, port, server, count = sys.argv[1:]
    server = None if server == "-" else int(server, 16).to_bytes(8, "big")
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(PORTS)]
    began = time.monotonic()
    for nth in range(int(count)):
        sockets[nth % PORTS].sendto(initial(server), (address, int(port)))
        time.sleep(max(0, began + nth / A_SECOND - time.monotonic()))


main()
