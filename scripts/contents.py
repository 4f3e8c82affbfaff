#!/usr/bin/env python3
"""Shows that a program contains nothing that is for measurements only.

    scripts/contents.py PROGRAM CONTROL     exit 1 if PROGRAM has some of it, or CONTROL lacks some

Looks for the names of suites and groups, and for the numbers that their code cannot do without.
CONTROL is a program that measures: what is not found there either shows nothing.
"""

import pathlib
import sys

sys.dont_write_bytecode = True  # Nothing is left beside the scripts.

MARKS = {
    "suites without a cipher": b"null-hmac-sha1",
    "suites without a MAC": b"3des-ctr-null",
    "suites with RC2": b"rc2-40-ctr-",
    "suites with MD5": b"aes-256-ctr-hmac-md5",
    "RC2's table (RFC 2268 2)": bytes.fromhex("d978f9c419ddb5ed28e9fd794aa0d89d"),
    "MD5's first number (RFC 1321 3.4)": (0xD76AA478).to_bytes(4, "little"),
    "MD5's last number": (0xEB86D391).to_bytes(4, "little"),
    "groups modulo a prime": b"modp-1024",
    "their primes (RFC 2409 6)": b"C90FDAA22168C234C4C6628B80DC1CD1",
}


def missing(program):
    """Which marks the program has not."""
    content = pathlib.Path(program).read_bytes()
    lower = content.lower()
    return {name for name, mark in MARKS.items() if mark not in content and mark.lower() not in lower}


if len(sys.argv) != 3:
    sys.exit(__doc__)
program, control = sys.argv[1:]
found = MARKS.keys() - missing(program)
for name in sorted(found):
    print(f"{program} contains {name}")
for name in sorted(missing(control)):
    print(f"{control}, which measures, does not contain {name}: the mark shows nothing")
sys.exit(bool(found or missing(control)))
