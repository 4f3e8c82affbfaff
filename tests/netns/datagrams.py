#!/usr/bin/env python3
"""Runs both ends of the UDP scenario of tests/netns.sh.

    serve DNS ECHO             far: a DNS server on port DNS, an echo server on port ECHO
    dns HOST:PORT              near: queries an address, and a text of 4,000 bytes
    sizes HOST:PORT            near: datagrams of 0 to 65,507 bytes are echoed whole
    game HOST:PORT SECONDS     near: 60 datagrams of 200 bytes a second; counts losses

Knows no tunnel. If a claim does not hold, prints one line on standard error and exits with 1.
"""

import os
import select
import socket
import statistics
import struct
import sys
import time

from claims import NotSo, address, claim

LONGEST = 65_507
TEXT_BYTES = 4_000
ADDRESS = bytes([192, 0, 2, 80])
TYPE_A, TYPE_TXT, TYPE_OPT, CLASS_IN = 1, 16, 41, 1
RATE = 60
# A datagram not back by then counts as lost.
PATIENCE_SECONDS = 2.0


def connected(place):
    near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    near.connect(place)
    near.settimeout(PATIENCE_SECONDS)
    return near


# ---- DNS (RFC 1035) ------------------------------------------------------------------------------


def encode_name(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def query(number, name, kind):
    header = struct.pack(">6H", number, 0x0100, 1, 0, 0, 1)
    question = encode_name(name) + struct.pack(">2H", kind, CLASS_IN)
    # EDNS (RFC 6891): answers of up to 8,192 bytes.
    return header + question + b"\0" + struct.pack(">HHIH", TYPE_OPT, 8_192, 0, 0)


def answer(asked):
    end = asked.index(b"\0", 12) + 5
    question = asked[12:end]
    (kind,) = struct.unpack(">H", question[-4:-2])
    data = ADDRESS
    if kind == TYPE_TXT:
        piece = b"\xc8" + b"k" * 200
        data = (piece * (TEXT_BYTES // len(piece) + 1))[: TEXT_BYTES // len(piece) * len(piece)]
    record = b"\xc0\x0c" + struct.pack(">HHIH", kind, CLASS_IN, 60, len(data)) + data
    return asked[:2] + struct.pack(">5H", 0x8580, 1, 1, 0, 0) + question + record


def resolve(place, name, kind):
    """The data of the answer's record."""
    number = int.from_bytes(os.urandom(2))
    asked = query(number, name, kind)
    with connected(place) as near:
        began = time.monotonic()
        near.send(asked)
        got = near.recv(LONGEST)
        print(f"{name} type {kind}: {len(got)} bytes in {(time.monotonic() - began) * 1e3:.1f} ms")
    claim(got[:2] == asked[:2], "another query's answer")
    return got[len(encode_name(name)) + 12 + 4 + 12 :]


# ---- subcommands ---------------------------------------------------------------------------------


def serve(dns, echo):
    sockets = []
    for port in (dns, echo):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("127.0.0.1", int(port)))
        sockets.append(one)
    print("listening", flush=True)
    while True:
        for ready in select.select(sockets, [], [])[0]:
            data, source = ready.recvfrom(LONGEST)
            ready.sendto(answer(data) if ready is sockets[0] else data, source)


def dns(place):
    claim(resolve(address(place), "www.example", TYPE_A) == ADDRESS, "another address")
    text = resolve(address(place), "long.example", TYPE_TXT)
    claim(len(text) > 3_000 and text.count(b"k") > 3_000, f"a text of {len(text)} bytes")


def sizes(place):
    with connected(address(place)) as near:
        for size in (0, 1, 512, 1_200, 1_400, 1_420, 1_452, 1_472, 1_500, 9_000, 40_000, LONGEST):
            sent = os.urandom(size)
            near.send(sent)
            claim(near.recv(LONGEST) == sent, f"{size} bytes came back otherwise")
    print(f"datagrams of up to {LONGEST} bytes come back whole")


def game(place, seconds):
    count = int(float(seconds) * RATE)
    sent_at, back = {}, {}
    with connected(address(place)) as near:
        near.setblocking(False)
        began = time.monotonic()
        end = began + count / RATE + PATIENCE_SECONDS
        sent = 0
        while (now := time.monotonic()) < end and len(back) < count:
            due = began + sent / RATE
            if sent < count and now >= due:
                sent_at[sent] = now
                near.send(struct.pack(">I", sent) + bytes(196))
                sent += 1
                continue
            wait = (due if sent < count else end) - now
            if select.select([near], [], [], max(0, wait))[0]:
                (number,) = struct.unpack(">I", near.recv(LONGEST)[:4])
                back.setdefault(number, time.monotonic() - sent_at[number])
    lost = count - len(back)
    trips = sorted(trip * 1e3 for trip in back.values())
    claim(trips, "nothing came back")
    late = trips[int(len(trips) * 0.99)]
    print(
        f"{count} datagrams at {RATE} a second: {lost} lost; "
        f"round trip median {statistics.median(trips):.2f} ms, 99 % within {late:.2f} ms"
    )
    # One in a hundred: the machine may be busy.
    claim(lost * 100 <= count, f"{lost} of {count} lost")


def main():
    commands = {"serve": serve, "dns": dns, "sizes": sizes, "game": game}
    try:
        commands[sys.argv[1]](*sys.argv[2:])
    except (NotSo, OSError) as error:
        print(f"datagrams.py {sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
