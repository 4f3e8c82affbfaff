#!/usr/bin/env python3
"""Counts instructions per sealed and opened packet, and in loops of MACs; compares them with tests/instructions.txt.

Packets are counted by valgrind's callgrind, in the bench `instructions` of keypadd-provider as compiled for release.
Repeated, it differs by a few instructions at most, with addresses and with the times of sampled packets.
Loops that valgrind cannot run are counted in the disassembly of the same artifact, as is the stack of MACs.

    scripts/instructions.py             compare; exit 1 if a figure has grown beyond its tolerance
    scripts/instructions.py --record    write the file anew, with its tolerances and its rows of loops

Another compiler, C library, valgrind or set of CPU features gives other counts: what depends on it is not compared
then, which the script says and is no failure. Needs cargo, valgrind and objdump. Respects CARGO_TARGET_DIR.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELATIVE = "tests/instructions.txt"
FILE = ROOT / RELATIVE
# The function of benches/instructions.rs inside which packets pass. Of two options with equal patterns, callgrind
# heeds one.
COUNTED, COUNTED_TOO = "*counted_packets*", "*::counted_packets*"
TIMEOUT_SECONDS = 300
RECORD_HERE = "--record them here, at a commit without the change"

HEAD = """\
# Instructions of sealing and opening, as compiled for release; scripts/instructions.py --record writes this.
#
# valgrind knows no SHA instructions, VAES, VPCLMULQDQ or AVX-512, and its CPUID shows none: packets take the
# path of a CPU with AES-NI, PCLMULQDQ and AVX2, whatever the machine has. Clock reads are system calls there,
# and the kernel's work is not counted. These are no times: a cache miss costs nothing.
#
# Packets are compared where all four of these are as here, loops where the compiler is.
"""

HEAD_OF_PACKETS = """
# Instructions per packet. hit: its pad is in a full pool; miss: the pool is empty; off: there is no pool.
#      way   suite              pads  payload  instructions  tolerance
"""

HEAD_OF_LOOPS = """
# Static instructions of a loop. Of the innermost loops in a function, the one with most of an instruction. Both
# are regular expressions, for objdump's text from its start (vpclmulqdq on 512 bits is vpclmul.*zmm) and for a
# part of the demangled name. To add a row, write 0 instructions, and record.
#    instruction     instructions  tolerance  function
"""

HEAD_OF_FRAMES = """
# Stack that a function's prologue takes, in bytes. The MACs wipe what these frames need and no more (the constants
# *_STACK_BYTES of keypadd-keystream): a frame that grows must grow the constant too.
#      bytes  tolerance  function
"""

DEFAULT_TOLERANCE = 3.0  # percent


class Row(typing.NamedTuple):
    """A figure: what it is of, its value, and by how many percent it may grow."""

    kind: str
    key: tuple
    figure: float
    tolerance: float

    def name(self):
        if self.kind == "loop":
            instruction, function = self.key
            return f"loop of {instruction} in {function}"
        if self.kind == "frame":
            return f"frame of {self.key[0]}"
        way, suite, pads, payload = self.key
        return f"{way} a packet of {payload} bytes, {suite}, {pads}"

    def line(self):
        tolerance = f"{self.tolerance:g} %"
        if self.kind == "loop":
            instruction, function = self.key
            return f"loop {instruction:15} {self.figure:12.0f}  {tolerance:>9}  {function}"
        if self.kind == "frame":
            return f"frame {self.figure:6.0f}  {tolerance:>9}  {self.key[0]}"
        way, suite, pads, payload = self.key
        return f"packet {way:5} {suite:18} {pads:5} {payload:>7}  {self.figure:12.1f}  {tolerance:>9}"


def say(text):
    print(f"instructions: {text}", flush=True)


def fail(text):
    say(text)
    sys.exit(1)


def output(*command):
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        fail(f"failed: {' '.join(command)}")
    return run.stdout


# The file.


def read_file():
    """What the counts hold for, and the rows in order."""
    conditions, rows = {}, []
    for line in FILE.read_text().splitlines() if FILE.exists() else []:
        if not line or line.startswith("#"):
            continue
        if match := re.fullmatch(r"(\w+): (.*)", line):
            conditions[match[1]] = match[2]
        elif match := re.fullmatch(r"packet (\S+) +(\S+) +(\S+) +(\d+) +([\d.]+) +([\d.]+) %", line):
            *key, figure, tolerance = match.groups()
            rows.append(Row("packet", tuple(key), float(figure), float(tolerance)))
        elif match := re.fullmatch(r"loop (\S+) +(\d+) +([\d.]+) % +(\S.*)", line):
            instruction, figure, tolerance, function = match.groups()
            rows.append(Row("loop", (instruction, function), float(figure), float(tolerance)))
        elif match := re.fullmatch(r"frame +(\d+) +([\d.]+) % +(\S.*)", line):
            figure, tolerance, function = match.groups()
            rows.append(Row("frame", (function,), float(figure), float(tolerance)))
        else:
            fail(f"{RELATIVE}: cannot read `{line}`")
    return conditions, rows


def write_file(conditions, rows):
    text = HEAD + "".join(f"{name}: {value}\n" for name, value in conditions.items())
    for kind, head in (("packet", HEAD_OF_PACKETS), ("loop", HEAD_OF_LOOPS), ("frame", HEAD_OF_FRAMES)):
        text += head + "".join(row.line() + "\n" for row in rows if row.kind == kind)
    FILE.write_text(text)


# What is counted.


def build():
    """The bench as compiled for release."""
    bench = ("-p", "keypadd-provider", "--bench", "instructions")
    as_json = ("--message-format", "json-render-diagnostics")
    messages = output("cargo", "build", "--release", "--locked", *bench, *as_json)
    for message in map(json.loads, messages.splitlines()):
        if message.get("executable") and message["target"]["name"] == "instructions":
            return message["executable"]
    fail("cargo has built no bench `instructions`")


def count_packets(bench, folder):
    """The features that the bench sees under valgrind, and instructions per packet by case."""
    log = folder / "log"
    callgrind = (
        "valgrind", "--tool=callgrind", f"--log-file={log}", f"--callgrind-out-file={folder}/part",
        f"--toggle-collect={COUNTED}", f"--dump-after={COUNTED_TOO}",
    )  # fmt: skip
    # No variable of the caller's reaches the stack or changes what the C library does.
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    run = subprocess.run(
        [*callgrind, bench], env=env, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS
    )
    if run.returncode:
        print(run.stdout, log.read_text() if log.exists() else "", sep="\n")
        fail(f"under valgrind, {bench} ended with {run.returncode}")
    features, *cases = run.stdout.splitlines()
    # A part for each case, and one for the end. Totals are right; functions are not, after the first part.
    totals = {}
    for text in (path.read_text() for path in folder.glob("part*")):
        if re.search(r"^desc: Trigger: --dump-after", text, re.MULTILINE):
            part, total = (
                int(re.search(rf"^{name}: (\d+)", text, re.MULTILINE)[1]) for name in ("part", "summary")
            )
            totals[part] = total
    if len(totals) != len(cases):
        fail(f"{len(cases)} cases have {len(totals)} counts: does `counted_packets` still exist?")
    counts = {}
    for case, part in zip(cases, sorted(totals)):
        *key, packets = case.split()[1:]
        counts[tuple(key)] = totals[part] / int(packets)
    return features.removeprefix("features").strip(), counts


class Instruction(typing.NamedTuple):
    address: int
    text: str
    jumps_to: int | None


def disassembled(artifact, pattern):
    """The functions whose demangled names match: name, and instructions."""
    symbols = re.compile(r"([0-9a-f]+) ([0-9a-f]+) [tTwW] (.*)")
    for line in output("nm", "--demangle", "--print-size", artifact).splitlines():
        symbol = symbols.fullmatch(line)
        if not symbol or not re.search(pattern, symbol[3]):
            continue
        start = int(symbol[1], 16)
        bounds = f"--start-address={start:#x}", f"--stop-address={start + int(symbol[2], 16):#x}"
        listing = output("objdump", "--disassemble", "--no-show-raw-insn", *bounds, artifact)
        instructions = []
        # For example "  1a2b:\tjne    1a00 <name+0x12>".
        for address, text in re.findall(r"^ *([0-9a-f]+):\t(.*)$", listing, re.MULTILINE):
            jump = re.match(r"(?:(?:bnd|notrack) )?j\w+(?:,p[nt])? +([0-9a-f]+)\b", text)
            target = int(jump[1], 16) if jump else None
            instructions.append(Instruction(int(address, 16), text, target))
        yield symbol[3], instructions


def loops(function):
    """The innermost loops: from the target of a backward jump to the jump."""
    spans = {(it.jumps_to, it.address) for it in function if it.jumps_to and it.jumps_to <= it.address}
    starts = {it.address for it in function}
    spans = {(start, end) for start, end in spans if start in starts}
    # Several jumps to one place are one loop, which the last of them ends.
    ends = {start: max(end for at, end in spans if at == start) for start, _ in spans}
    for start, end in ends.items():
        if not any(start < at and until <= end for at, until in ends.items()):
            yield [it for it in function if start <= it.address <= end]


def count_loop(artifact, instruction, pattern):
    """Instructions of the innermost loop with most of one, in the function that matches and has such a loop."""
    found = []
    for name, function in disassembled(artifact, pattern):
        used = [(sum(bool(re.match(instruction, it.text)) for it in loop), len(loop)) for loop in loops(function)]
        if used and max(used)[0]:
            found.append((name, *max(used)))
    if len(found) != 1:
        names = ", ".join(name for name, *_ in found) or "none: renamed, inlined, or no longer a loop?"
        fail(f"{RELATIVE}: one function `{pattern}` must have a loop with {instruction}, but there is {names}")
    [(name, uses, instructions)] = found
    print(f"  {name}: {instructions} instructions, {uses} of them {instruction}")
    return instructions


def frame_bytes(artifact, pattern):
    """Bytes of the return address, saved registers and locals of the function that matches, with those below the
    stack pointer that it uses without reserving them (the red zone of the System V ABI)."""
    found = list(disassembled(artifact, pattern))
    if len(found) != 1:
        fail(f"{RELATIVE}: one function must match `{pattern}`, not {len(found)}")
    [(name, function)] = found
    saved = sum(it.text.startswith("push") for it in function)
    locals_of = [int(size, 16) for it in function for size in re.findall(r"^sub +\$(0x[0-9a-f]+),%rsp", it.text)]
    below = [int(size, 16) for it in function for size in re.findall(r"-(0x[0-9a-f]+)\(%rsp", it.text)]
    bytes_of = 8 + 8 * saved + max(locals_of, default=0) + max(below, default=0)
    print(f"  {name}: a frame of {bytes_of} bytes")
    return bytes_of


# The comparison.


def compare(rows, counts):
    """Prints all figures; returns the rows beyond their tolerances, grown and shrunk."""
    grown, shrunk = [], []
    for row in rows:
        now = counts[row.kind, row.key]
        change = 100 * (now / row.figure - 1) if row.figure else float("inf")
        unit = "bytes" if row.kind == "frame" else "instructions"
        what = f"{row.name()}: {row.figure:g} {unit} before, {now:g} now"
        what += f" ({change:+.1f} %, tolerance {row.tolerance:g} %)" if row.figure else " (never recorded)"
        print(f"  {what}")
        if change > row.tolerance:
            grown.append((row, what))
        elif change < -row.tolerance:
            shrunk.append((row, what))
    return grown, shrunk


def judge(rows, counts, bench):
    """Says what has changed; fails if something has become dearer."""
    grown, shrunk = compare(rows, counts)
    for _, what in shrunk:
        say(f"cheaper, --record to keep it so: {what}")
    for _, what in grown:
        say(f"DEARER: {what}")
    if not grown:
        say(f"compared {len(rows)}, none is dearer beyond its tolerance")
        return
    if case := next((" ".join(row.key) for row, _ in grown if row.kind == "packet"), None):
        say("these show which functions a packet's instructions are in:")
        say(f"  valgrind --tool=callgrind --toggle-collect='{COUNTED}' {bench} {case}")
        say("  callgrind_annotate callgrind.out.*")
    fail(f"if it has to be, run scripts/instructions.py --record and commit {RELATIVE} with the reason")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {RELATIVE}")
    record = parser.parse_args().record
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        say("SKIPPED: the figures are of Linux on x86-64")
        return
    for tool in ("valgrind", "nm", "objdump"):
        if not shutil.which(tool):
            fail(f"no {tool}: install valgrind and binutils")

    recorded, rows = read_file()
    bench = build()
    with tempfile.TemporaryDirectory() as folder:
        features, packets = count_packets(bench, pathlib.Path(folder))
    here = {
        "rustc": output("rustc", "--version").strip(),
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
        "valgrind": output("valgrind", "--version").strip(),
        "features": features,
    }
    counts = {("packet", key): round(count, 1) for key, count in packets.items()}
    differs = [name for name in here if here[name] != recorded.get(name)]
    if not record:
        for name in differs:
            say(f"{name}: `{here[name]}` here, `{recorded.get(name)}` when recorded")
        if "rustc" in differs:
            say(f"SKIPPED: nothing is compared, another compiler gives other counts; {RECORD_HERE}")
            return
    statics = [row for row in rows if row.kind != "packet"]
    measures = {"loop": count_loop, "frame": frame_bytes}
    counts |= {(row.kind, row.key): measures[row.kind](bench, *row.key) for row in statics}
    if record:
        tolerances = {(row.kind, row.key): row.tolerance for row in rows}
        new = [
            Row(*which, figure, tolerances.get(which, DEFAULT_TOLERANCE))
            for which, figure in counts.items()
        ]
        write_file(here, new)
        say(f"recorded {len(new)} counts in {RELATIVE}")
    elif differs:
        say(f"SKIPPED: packets are not compared, only loops and frames are; {RECORD_HERE}")
        judge(statics, counts, bench)
    elif unpaired := counts.keys() ^ {(row.kind, row.key) for row in rows}:
        fail(f"counted or recorded, but not both; run it with --record: {sorted(unpaired)}")
    else:
        judge(rows, counts, bench)


if __name__ == "__main__":
    main()
