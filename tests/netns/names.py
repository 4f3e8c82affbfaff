#!/usr/bin/env python3
"""Serves DNS for the SRV scenarios of tests/netns.sh and tests/netns-fleet.sh.

    names.py PORT PRIORITY:NAME:ADDRESS...    near: answers on 127.0.0.1:53. _keypadd._udp.example is an alias of
                                              a name with an SRV record for each NAME, on PORT, in this order. They
                                              do not fit into a datagram: only TCP carries them.

Knows no tunnel.
"""

import socket
import socketserver
import struct
import sys
import threading

from datagrams import CLASS_IN, TYPE_A, encode_name

TYPE_CNAME, TYPE_SRV = 5, 33
SERVICE, ALIAS = "_keypadd._udp.example", "_service._udp.example"
TRUNCATED = 0x0200


def record(owner, kind, data):
    return encode_name(owner) + struct.pack(">HHIH", kind, CLASS_IN, 60, len(data)) + data


def records(zone, port, name, kind):
    if name in zone:
        return [record(name, TYPE_A, socket.inet_aton(zone[name][1]))] if kind == TYPE_A else []
    if name == SERVICE and kind == TYPE_SRV:
        targets = [struct.pack(">3H", at, 1, port) + encode_name(to) for to, (at, _) in zone.items()]
        return [record(SERVICE, TYPE_CNAME, encode_name(ALIAS))] + [
            record(ALIAS, TYPE_SRV, target) for target in targets
        ]
    return None


def answer(zone, port, asked, is_tcp):
    end = asked.index(b"\0", 12) + 5
    labels, at = [], 12
    while asked[at]:
        labels.append(asked[at + 1 : at + 1 + asked[at]].decode().lower())
        at += 1 + asked[at]
    (kind,) = struct.unpack(">H", asked[end - 4 : end - 2])
    found = records(zone, port, ".".join(labels), kind)
    flags = 0x8180 if found is not None else 0x8183
    if kind == TYPE_SRV and not is_tcp:
        found, flags = [], flags | TRUNCATED
    found = found or []
    print(f"{'tcp' if is_tcp else 'udp'} {'.'.join(labels)} type {kind}", flush=True)
    return asked[:2] + struct.pack(">5H", flags, 1, len(found), 0, 0) + asked[12:end] + b"".join(found)


def main():
    port, *targets = sys.argv[1:]
    fields = (target.split(":") for target in targets)
    zone = {name: (int(priority), address) for priority, name, address in fields}

    class Datagram(socketserver.BaseRequestHandler):
        def handle(self):
            asked, near = self.request
            near.sendto(answer(zone, int(port), asked, False), self.client_address)

    class Connection(socketserver.StreamRequestHandler):
        def handle(self):
            (length,) = struct.unpack(">H", self.rfile.read(2))
            message = answer(zone, int(port), self.rfile.read(length), True)
            self.wfile.write(struct.pack(">H", len(message)) + message)

    by_udp = socketserver.UDPServer(("127.0.0.1", 53), Datagram)
    by_tcp = socketserver.TCPServer(("127.0.0.1", 53), Connection)
    print("listening", flush=True)
    threading.Thread(target=by_tcp.serve_forever, daemon=True).start()
    by_udp.serve_forever()


if __name__ == "__main__":
    main()
