#!/usr/bin/env python3
"""Runs the near end of tests/netns.sh: a subcommand per claim, against target.py behind HOST:PORT.

--target is target.py's own address, reached without the tunnel, to ask for what only the far end
knows. If a claim does not hold, prints one line on standard error and exits with 1.
"""

import argparse
import errno
import hashlib
import json
import os
import secrets
import socket
import statistics
import struct
import sys
import threading
import time

from claims import NotSo, address, claim

PIECE_BYTES = 256 << 10
PATIENCE_SECONDS = 300
# What has not moved for this long has stopped.
STILL_SECONDS = 2.0


def ask(place, line):
    """Connects and sends the request line."""
    connection = socket.create_connection(place, timeout=30)
    connection.settimeout(PATIENCE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(line.encode() + b"\n")
    return connection


def send_random(connection, size):
    digest = hashlib.sha256()
    while size:
        piece = os.urandom(min(size, PIECE_BYTES))
        digest.update(piece)
        connection.sendall(piece)
        size -= len(piece)
    return digest.digest()


def receive(connection, size):
    """Receives exactly `size` bytes; returns their SHA-256."""
    digest = hashlib.sha256()
    while size:
        piece = connection.recv(min(size, PIECE_BYTES))
        claim(piece, f"the end came {size} bytes early")
        digest.update(piece)
        size -= len(piece)
    return digest.digest()


def receive_exactly(connection, size):
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        claim(piece, f"the end came {size - len(data)} bytes early")
        data += piece
    return data


def at_end(connection):
    claim(connection.recv(1) == b"", "bytes after the last byte")


def ends_in_reset(connection):
    try:
        while piece := connection.recv(PIECE_BYTES):
            del piece
    except ConnectionResetError:
        return
    raise NotSo("an orderly end where a reset was due")


def report(target, token, ready):
    """Returns the target's report for the token, once `ready` accepts it."""
    for _ in range(200):
        with ask(target, f"report {token}") as connection:
            known = b""
            while piece := connection.recv(4096):
                known += piece
        known = json.loads(known)
        if ready(known):
            return known
        time.sleep(0.05)
    raise NotSo(f"the target knows only {known}")


def compare(connection, sent, received):
    """Compares the target's two SHA-256 with ours, then expects the end of the stream."""
    trailer = receive_exactly(connection, 64)
    claim(trailer[:32] == received, "SHA-256 differs from the target to here")
    claim(trailer[32:] == sent, "SHA-256 differs from here to the target")
    at_end(connection)


def send_all(connection, size):
    sent = send_random(connection, size)
    connection.shutdown(socket.SHUT_WR)
    return sent


def exchange(connection, size):
    """Sends `size` random bytes each way at once."""
    sent = []
    sender = threading.Thread(target=lambda: sent.append(send_all(connection, size)))
    sender.start()
    received = receive(connection, size)
    sender.join()
    claim(sent, "sending failed")
    compare(connection, sent[0], received)


def swap(flags):
    started = time.monotonic()
    size = flags.mib << 20
    with ask(flags.place, f"swap {size}") as connection:
        exchange(connection, size)
    seconds = time.monotonic() - started
    print(f"{flags.mib} MiB each way at once in {seconds:.1f} s, {2 * flags.mib / seconds:.0f} MiB/s")


def crowd(flags):
    """Opens all connections before the first transfers its bytes."""
    sizes = [1, 1500, 65_536, 300_007]
    gate = threading.Barrier(flags.connections, timeout=60)
    faults = []

    def one(nth):
        try:
            size = sizes[nth % len(sizes)]
            with ask(flags.place, f"swap {size}") as connection:
                claim(connection.recv(1, socket.MSG_PEEK), "no first byte")
                gate.wait()
                exchange(connection, size)
        except Exception as fault:  # report it and continue with the others
            faults.append(f"connection {nth}: {fault!r}")

    threads = [threading.Thread(target=one, args=(nth,)) for nth in range(flags.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    claim(not faults, f"{len(faults)} of {flags.connections} failed, first: {faults[:1]}")
    print(f"{flags.connections} connections, all open at once, exact")


def near_half_close(flags):
    with ask(flags.place, "answer 100000") as connection:
        sent = send_all(connection, 300_000)
        compare(connection, sent, receive(connection, 100_000))
    print("this end said its last word first and got 100,000 bytes of answer")


def quick(flags):
    """Makes connections one after the other, each of which ends here first; counts the exact ones."""
    exact = 0
    for _ in range(flags.connections):
        try:
            with ask(flags.place, "answer 1") as connection:
                sent = send_all(connection, 1)
                compare(connection, sent, receive(connection, 1))
            exact += 1
        except OSError as fault:
            # `shutdown` says "not connected" if the reset came before it.
            if fault.errno not in (errno.ECONNRESET, errno.ENOTCONN):
                raise
    print(f"{exact} of {flags.connections} connections were exact, the others were reset")
    claim(exact == flags.exact, f"not {flags.exact}")


def far_half_close(flags):
    token = secrets.token_hex(8)
    with ask(flags.place, f"speak {token} 100000") as connection:
        receive(connection, 100_000)
        at_end(connection)
        sent = send_all(connection, 300_000)
        known = report(flags.target, token, lambda known: known.get("ended"))
    claim(known["ended"] == "eof", f"the far end saw a {known['ended']}")
    claim(known["sha256"] == sent.hex(), "SHA-256 differs from here to the target")
    print("the far end said its last word first and still got 300,000 bytes")


def far_reset(flags):
    with ask(flags.place, "reset") as connection:
        ends_in_reset(connection)
    print("a reset of the target arrives as a reset")


def near_reset(flags):
    token = secrets.token_hex(8)
    with ask(flags.place, f"listen {token}") as connection:
        connection.sendall(b"x" * 1000)
        report(flags.target, token, lambda known: known.get("bytes") == 1000)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    known = report(flags.target, token, lambda known: known.get("ended"))
    claim(known["ended"] == "reset", f"the target saw an {known['ended']}")
    print("a reset of the client arrives as a reset")


def refused(flags):
    try:
        with socket.create_connection(flags.place, timeout=30) as connection:
            ends_in_reset(connection)
    except ConnectionResetError:
        pass  # already while connect looked at its outcome
    print("the connection ends as a reset")


def hold(flags):
    """Keeps a connection busy until the other end closes it."""
    with ask(flags.place, "echo") as connection:
        print("held", flush=True)
        try:
            while connection.send(b"x") and connection.recv(1):
                time.sleep(0.05)
        except OSError:
            pass


def push(flags):
    """Writes --mib over several connections to stopped readers."""
    goal = flags.mib << 20
    piece = os.urandom(PIECE_BYTES)
    connections = [ask(flags.place, "stall") for _ in range(flags.connections)]
    for connection in connections:
        connection.setblocking(False)
    pushed, moved = 0, time.monotonic()
    while pushed < goal and time.monotonic() - moved < STILL_SECONDS:
        before = pushed
        for connection in connections:
            try:
                pushed += connection.send(piece)
            except BlockingIOError:
                pass
        if pushed > before:
            moved = time.monotonic()
        else:
            time.sleep(0.01)
    claim(pushed < goal, f"all of {flags.mib} MiB was taken though nobody reads")
    print(f"{pushed >> 20} MiB of {flags.mib} were taken, then it stood still")


def stop(flags):
    """Lets the target flood several connections that are not read here."""
    token = secrets.token_hex(8)
    connections = [ask(flags.place, f"flood {token}") for _ in range(flags.connections)]
    count, moved = -1, time.monotonic()
    while time.monotonic() - moved < STILL_SECONDS:
        known = report(flags.target, token, lambda known: known.get("bytes"))
        claim(known["bytes"] < flags.mib << 20, f"all of {flags.mib} MiB was taken")
        if known["bytes"] != count:
            count, moved = known["bytes"], time.monotonic()
        time.sleep(0.05)
    for connection in connections:
        connection.close()
    print(f"{count >> 20} MiB of {flags.mib} were taken, then it stood still")


def round_trips(connection, flags):
    """Median round trip in microseconds, at a rate independent of slow answers: a message that is
    due while another is in flight is timed from its due time."""
    message, taken = os.urandom(flags.bytes), []
    free = due = time.perf_counter()
    for _ in range(int(flags.rate * flags.seconds)):
        due += 1 / flags.rate
        time.sleep(max(0.0, due - time.perf_counter()))
        started = due if free > due else time.perf_counter()
        connection.sendall(message)
        echoed = receive_exactly(connection, flags.bytes)
        free = time.perf_counter()
        claim(echoed == message, "an answer differs from its question")
        taken.append((free - started) * 1e6)
    return statistics.median(taken)


def spread(figures, form):
    return f"{statistics.median(figures):{form}} ({min(figures):{form}} - {max(figures):{form}})"


def trips(flags):
    """Alternates the arms. Prints medians over rounds, with minimum and maximum."""
    arms = dict(arm.split("=", 1) for arm in flags.arm)
    connections = {name: ask(address(place), "echo") for name, place in arms.items()}
    medians = {name: [] for name in arms}
    for _ in range(flags.rounds):
        for name, connection in connections.items():
            medians[name].append(round_trips(connection, flags))
    for name, figures in medians.items():
        print(f"{name:28} p50 {spread(figures, '.0f')} us")
    for rule in flags.rule:
        above, below, relation, limit = rule.split(",")
        ratios = [one / other for one, other in zip(medians[above], medians[below])]
        ratio = statistics.median(ratios)
        holds = ratio <= float(limit) if relation == "at-most" else ratio >= float(limit)
        print(
            f"{above} / {below}: {spread(ratios, '.2f')}, "
            f"{relation.replace('-', ' ')} {limit}: {'holds' if holds else 'does not hold'}"
        )


def read_flags():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(required=True)

    def verb(work, *names, place=True):
        sub = verbs.add_parser(work.__name__.replace("_", "-"))
        sub.set_defaults(work=work)
        if place:
            sub.add_argument("place", type=address, metavar="HOST:PORT")
        if "target" in names:
            sub.add_argument("--target", type=address, required=True)
        for name in ("mib", "connections", "exact"):
            if name in names:
                sub.add_argument(f"--{name}", type=int, required=True)
        return sub

    verb(swap, "mib")
    verb(crowd, "connections")
    verb(near_half_close)
    verb(quick, "connections", "exact")
    verb(far_half_close, "target")
    verb(far_reset)
    verb(near_reset, "target")
    verb(refused)
    verb(hold)
    verb(push, "mib", "connections")
    verb(stop, "target", "mib", "connections")
    sub = verb(trips, place=False)
    sub.add_argument("arm", nargs="+", metavar="NAME=HOST:PORT")
    sub.add_argument("--rule", action="append", default=[], metavar="ARM,ARM,at-most|at-least,X")
    sub.add_argument("--bytes", type=int, required=True)
    sub.add_argument("--rate", type=float, required=True)
    sub.add_argument("--seconds", type=float, required=True)
    sub.add_argument("--rounds", type=int, default=1)
    return parser.parse_args()


def main():
    flags = read_flags()
    try:
        flags.work(flags)
    except (NotSo, OSError) as fault:
        sys.exit(f"probe: {fault or repr(fault)}")


main()
