#!/usr/bin/env python3
"""Writes key exchanges modulo the primes of RFC 2409, RFC 3526 and RFC 7919, by Python's `pow`.

The primes are computed from the formulas that the RFCs give for them, so that nothing is copied.
Deterministic: exponents are SHAKE-128 of their labels.

    scripts/modp_vectors.py            write modp.txt beside the crate's other vectors
    scripts/modp_vectors.py --check    regenerate and compare; exit 1 if it differs
"""

import argparse
import hashlib
import pathlib
import sys

FILE = (
    pathlib.Path(__file__).resolve().parent.parent
    / "crates/keypadd-provider/tests/vectors/modp.txt"
)

HEAD = """\
# Origin: scripts/modp_vectors.py (Python's pow, primes by the formulas of RFC 2409, 3526 and 7919).
# One block per exchange; all values but the group are hex, shares and secrets as long as the prime.
"""

GUARD_BITS = 128


def pi_times_2_to(bits):
    """Machin: pi = 16 arctan(1/5) - 4 arctan(1/239)."""
    one = 1 << bits + GUARD_BITS

    def arctan_of_inverse(n):
        total, power, at = 0, one // n, 0
        while power:
            total += (-1) ** at * (power // (2 * at + 1))
            power //= n * n
            at += 1
        return total

    return 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239) >> GUARD_BITS


def e_times_2_to(bits):
    term, total, at = 1 << bits + GUARD_BITS, 0, 0
    while term:
        total += term
        at += 1
        term //= at
    return total >> GUARD_BITS


def prime(bits, constant, offset):
    """2^n - 2^(n-64) - 1 + 2^64 ([2^(n-130) constant] + offset)."""
    return 2**bits - 2 ** (bits - 64) - 1 + 2**64 * (constant(bits - 130) + offset)


# name: prime, bits of the exponents
GROUPS = {
    "modp-768": (prime(768, pi_times_2_to, 149686), 256),  # RFC 2409 6.1
    "modp-1024": (prime(1024, pi_times_2_to, 129093), 256),  # RFC 2409 6.2
    "modp-3072": (prime(3072, pi_times_2_to, 1690314), 320),  # RFC 3526 4
    "ffdhe3072": (prime(3072, e_times_2_to, 2625351), 320),  # RFC 7919 A.2
}


def exponent(bits, *label):
    random = hashlib.shake_128(repr(label).encode()).digest(bits // 8)
    return int.from_bytes(random, "big") | 1 << bits - 1


def short(number, p):
    """Whether a number, as long as the prime, starts with a zero byte."""
    return number.bit_length() <= p.bit_length() - 8


def exchanges(name, p, bits):
    """Two ordinary exchanges, one where our share is short, one where the secret is."""
    wanted = [lambda share, secret: True] * 2
    wanted.append(lambda share, secret: short(share, p))
    wanted.append(lambda share, secret: short(secret, p))
    for at, fits in enumerate(wanted):
        y = exponent(bits, name, at, "peer")
        peer = pow(2, y, p)
        for attempt in range(10**6):
            x = exponent(bits, name, at, attempt)
            share, secret = pow(2, x, p), pow(peer, x, p)
            if fits(share, secret):
                assert secret == pow(share, y, p)
                yield x, share, y, peer, secret
                break


def text():
    blocks = [HEAD]
    for name, (p, bits) in GROUPS.items():
        # Safe primes: a Fermat test of both, with a base that the RFCs did not use.
        assert all(pow(3, n - 1, n) == 1 for n in (p, (p - 1) // 2))
        size = p.bit_length() // 4
        for x, share, y, peer, secret in exchanges(name, p, bits):
            fields = {"exponent": (x, bits // 4), "share": (share, size)}
            fields |= {"peer_exponent": (y, bits // 4), "peer": (peer, size)}
            fields |= {"secret": (secret, size), "prime": (p, size)}
            lines = [f"{field} = {value:0{digits}x}\n" for field, (value, digits) in fields.items()]
            blocks.append(f"group = {name}\n" + "".join(lines))
    return "\n".join(blocks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        FILE.write_text(text())
    elif FILE.read_text() != text():
        sys.exit(f"{FILE} differs from what this script makes")


if __name__ == "__main__":
    main()
