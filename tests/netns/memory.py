#!/usr/bin/env python3
"""Runs a server in a memory cgroup of its own, and peers whose targets read nothing beside one that works.

    memory.py BINARY --mib 128

Four peers open 250 connections each, and both ends of these send until nothing more is taken; a pool of 64 MiB is
asked for. Over each of eight connections at once, a fifth peer that comes meanwhile sends 16 MiB through the server
and back, and then again over one; each byte must be right. Exits with 0 if that holds and the server lives, with 1 if
not, and with 77 if no memory cgroup can be made here.
What is printed includes the kernel's buffers of the server's sockets: version 2 of cgroups counts them as memory,
version 1 beside it.
"""

import argparse
import hashlib
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

PEERS, STREAMS, MIB = 4, 250, 1 << 20
# Twice as many descriptors are within what is left for a fifth peer, however much the four hold: 744 / 2^5.
SWAPS = 8
TIMEOUT = 20


def make_group(limit):
    """A memory cgroup below this process's own, or None."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            group, name = pathlib.Path("/sys/fs/cgroup" + path), "memory.max"
        elif "memory" in controllers.split(","):
            group, name = pathlib.Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        else:
            continue
        group /= f"keypadd-memory-{os.getpid()}"
        try:
            group.mkdir()
            (group / name).write_text(str(limit))
            if controllers:
                (group / "memory.kmem.tcp.limit_in_bytes").write_text(str(1 << 40))
            return group
        except OSError:
            if group.is_dir():
                group.rmdir()
    return None


def peak(group):
    """Most bytes that were charged to the group, with those of sockets."""
    names = ["memory.max_usage_in_bytes", "memory.kmem.tcp.max_usage_in_bytes", "memory.peak"]
    return sum(int((group / name).read_text()) for name in names if (group / name).exists())


def serve(handle):
    """Listens on loopback; returns the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)

    def accept():
        while True:
            connection, _ = listener.accept()
            handle(connection)

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def echo(connection):
    def copy():
        while block := connection.recv(1 << 16):
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=copy, daemon=True).start()


def connect(port):
    """Connects to a forward, once it listens."""
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), TIMEOUT)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def fill(connections):
    """Sends until nothing more is taken for a while."""
    block, idle = b"y" * (1 << 16), 0
    while idle < 20:
        idle += 1
        for connection in connections:
            try:
                while connection.send(block):
                    idle = 0
            except BlockingIOError:
                pass
            except OSError:
                connections.remove(connection)
                break
        time.sleep(0.05)


def swap(port):
    """Sends 16 MiB and compares what comes back."""
    sent, received, block = hashlib.sha256(), hashlib.sha256(), os.urandom(MIB)
    with connect(port) as connection:

        def send():
            for _ in range(16):
                connection.sendall(block)
                sent.update(block)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        while block_back := connection.recv(1 << 16):
            received.update(block_back)
        sender.join()
    return sent.digest() == received.digest()


class Daemons:
    def __init__(self, binary, directory):
        self.binary, self.directory, self.running = binary, directory, []

    def key(self, name):
        path = f"{self.directory}/{name}"
        public = subprocess.run([self.binary, "keygen", path], capture_output=True, text=True, check=True)
        return path, public.stdout.strip()

    def start(self, name, arguments, group=None):
        def enter():
            if group:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        log = open(f"{self.directory}/{name}.log", "w")
        environment = {**os.environ, "RUNTIME_DIRECTORY": f"{self.directory}/{name}.run"}
        os.mkdir(environment["RUNTIME_DIRECTORY"])
        command = [self.binary, *arguments, "--sandbox", "off"]
        daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment, preexec_fn=enter)
        self.running.append(daemon)
        return daemon

    def log(self, name):
        return pathlib.Path(f"{self.directory}/{name}.log").read_text()

    def stop(self):
        for daemon in self.running:
            daemon.kill()
        for daemon in self.running:
            daemon.wait()


def run(daemons, group):
    kept = []
    mute, echoing = serve(kept.append), serve(echo)
    server_key, server = daemons.key("server")
    peers = [daemons.key(f"peer{number}") for number in range(PEERS + 1)]
    allowed = [word for _, public in peers for word in ("--allow", public)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    permits = ["--permit-open", f"127.0.0.1:{mute}", "--permit-open", f"127.0.0.1:{echoing}"]
    arguments = ["serve", "--key", server_key, "--listen", address, *allowed, *permits]
    process = daemons.start("server", [*arguments, "--pool", "on", "--pool-budget", "64MiB"], group)

    def start(number, target):
        """Starts a peer; returns the port that leads to the target."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        forward = f"127.0.0.1:{port}:127.0.0.1:{target}"
        arguments = ["connect", address, "--peer", server, "--key", peers[number][0], "--pool", "off"]
        daemons.start(f"peer{number}", [*arguments, "-L", forward])
        return port

    ports = [start(number, mute) for number in range(PEERS)]
    stalled = []
    for port in ports:
        stalled += [connect(port) for _ in range(STREAMS)]
    ends = stalled + kept
    for connection in ends:
        connection.setblocking(False)
    filling = threading.Thread(target=fill, args=(ends,))
    filling.start()
    # It comes when the others have begun to take what they can.
    port = start(PEERS, echoing)
    with ThreadPoolExecutor(SWAPS) as pool:
        right = sum(pool.map(swap, [port] * SWAPS))
    filling.join()
    right += swap(port)
    print(f"    {len(stalled)} stalled, {len(kept)} reached the target, at most {peak(group) / MIB:.1f} MiB,"
          f" {right} of {SWAPS + 1} swaps right, server {'lives' if process.poll() is None else 'is dead'}")
    return right == SWAPS + 1 and process.poll() is None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--mib", type=int, required=True)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    group = make_group(options.mib * MIB)
    if not group:
        print("    left out: no memory cgroup can be made here")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as directory:
        daemons = Daemons(os.path.abspath(options.binary), directory)
        try:
            holds = run(daemons, group)
        except OSError as error:
            holds = False
            print(f"    {error}")
        finally:
            daemons.stop()
            if not holds:
                print(daemons.log("server")[-2000:])
            end = time.monotonic() + 5
            while group.is_dir() and time.monotonic() < end:
                try:
                    group.rmdir()
                except OSError:
                    time.sleep(0.05)
    return 0 if holds else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads that accept or copy go on.
    os._exit(code)
