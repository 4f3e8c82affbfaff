#!/usr/bin/env python3
"""Sends an echo request and checks the answer, or watches a link for the payload of one.

    ping.py ADDRESS BYTES [SOURCE]    exits with 0 if an answer with the same payload returns; asks up
                                      to four times, as a sender may have to learn the path's MTU
    ping.py --watch INTERFACE         until SIGTERM; exits with the number of frames with a payload

Needs root. Knows no tunnel.
"""

import os
import signal
import socket
import struct
import sys
import time

MARK = b"payload of an echo request, in clear"


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def ask(link, is_v6, host, number, payload):
    """Whether an answer comes within a second."""
    head = struct.pack("!BBHHH", 128 if is_v6 else 8, 0, 0, os.getpid() & 0xFFFF, number)
    if not is_v6:
        # The kernel computes that of ICMPv6.
        head = head[:2] + struct.pack("!H", checksum(head + payload)) + head[4:]
    link.sendto(head + payload, (host, 0))
    until = time.monotonic() + 1
    while (left := until - time.monotonic()) > 0:
        link.settimeout(left)
        try:
            got = link.recv(70_000)
        except TimeoutError:
            return False
        if not is_v6:
            got = got[(got[0] & 15) * 4 :]
        if got[0] == (129 if is_v6 else 0) and got[4:] == head[4:] + payload:
            return True
    return False


def ping(host, size, source=None):
    is_v6 = ":" in host
    payload = (MARK * (size // len(MARK) + 1))[:size]
    family, protocol = (
        (socket.AF_INET6, socket.IPPROTO_ICMPV6) if is_v6 else (socket.AF_INET, socket.IPPROTO_ICMP)
    )
    link = socket.socket(family, socket.SOCK_RAW, protocol)
    if source:
        link.bind((source, 0))
    for number in range(4):
        try:
            if ask(link, is_v6, host, number, payload):
                print(f"{size} bytes from {host}")
                return 0
        except OSError as error:  # too long for what the path's MTU was found to be
            print(error)
    print(f"no answer from {host}")
    return 1


def watch(interface):
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    link.bind((interface, 0))
    seen = 0

    def end(*_):
        os._exit(min(seen, 99))

    signal.signal(signal.SIGTERM, end)
    print("watching", flush=True)
    while True:
        seen += MARK in link.recv(70_000)


if __name__ == "__main__":
    if sys.argv[1] == "--watch":
        sys.exit(watch(sys.argv[2]))
    sys.exit(ping(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
