#!/usr/bin/env python3
"""Writes whole sealed packets of every suite, from the text of docs/protocol.md and nothing of ours.

Independent of the Rust code on purpose: block ciphers and AEADs come from the Python package
`cryptography` (OpenSSL), hashes and HMAC from the standard library, RC2 and the layouts are spelled
out below. Deterministic: inputs are SHAKE-128 of their labels.

    pip install cryptography
    scripts/sealed_packets.py            write sealed_packets.txt beside the crate's other vectors
    scripts/sealed_packets.py --check    regenerate and compare; exit 1 if it differs
"""

import argparse
import hashlib
import hmac
import itertools
import pathlib
import struct
import sys

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

FILE = (
    pathlib.Path(__file__).resolve().parent.parent
    / "crates/keypadd-keystream/tests/vectors/sealed_packets.txt"
)

HEAD = """\
# Origin: scripts/sealed_packets.py (Python's cryptography and hashlib, no code of ours).
# One block per packet; every value but suite and packet_number (decimal) is hex.
# key and iv are what TLS hands over; sealed is the ciphertext with its tag of 16 bytes.
"""

TAG_BYTES = 16
SEGMENT_BITS = 6  # 64 packets share a subkey
BLOCK_BITS = 13  # 8,192 blocks of 8 bytes in a packet

SUITES = [
    "aes-256-gcm",
    "aes-128-gcm",
    *(
        f"{cipher}-ctr-hmac-{digest}"
        for cipher in ("aes-256", "aes-128", "3des", "des")
        for digest in ("sha256", "sha1")
    ),
    *(f"{cipher}-ctr-hmac-md5" for cipher in ("aes-256", "aes-128", "3des", "des", "rc2-40")),
    "rc2-40-ctr-hmac-sha1",
    *(f"{cipher}-ctr-null" for cipher in ("aes-256", "aes-128", "3des", "des", "rc2-40")),
    "null-hmac-sha1",
    "null-hmac-md5",
    "null",
    "chacha20-poly1305",
]

PACKET_NUMBERS = [0, 63, 64, 2**32, 2**62 - 1]
PAYLOAD_BYTES = [0, 1, 15, 16, 20, 127, 128, 129, 1200, 1452]
# One jumbo frame per block length and family is enough; the file would grow fivefold.
JUMBO_BYTES = 9000
JUMBO_SUITES = {
    "aes-256-gcm",
    "aes-256-ctr-hmac-sha256",
    "3des-ctr-hmac-sha1",
    "chacha20-poly1305",
}
HEADER_BYTES = 41  # lengths 0 to 40 in turn


def be64(number):
    return number.to_bytes(8, "big")


def xor(left, right):
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def hkdf_expand(key, info, length):
    """RFC 5869 2.3 with SHA-256."""
    block, out = b"", b""
    for number in itertools.count(1):
        block = hmac.digest(key, block + info + bytes([number]), "sha256")
        out += block
        if len(out) >= length:
            return out[:length]


# The 64 weak, semi-weak and possibly weak DES keys, parity set. Each byte is one of four patterns,
# the same choice in both halves of the key, and the four choices of a half XOR to zero.
LEFT, RIGHT = (0x01, 0x1F, 0xE0, 0xFE), (0x01, 0x0E, 0xF1, 0xFE)
WEAK_KEYS = {
    bytes([LEFT[i] for i in choice] + [RIGHT[i] for i in choice])
    for choice in itertools.product(range(4), repeat=4)
    if choice[0] ^ choice[1] ^ choice[2] ^ choice[3] == 0
}


def odd_parity(key):
    return bytes(byte & 0xFE | (byte >> 1).bit_count() + 1 & 1 for byte in key)


def strong(key):
    """No part in the list of weak keys, no two of three parts equal."""
    parts = [key[at : at + 8] for at in range(0, len(key), 8)]
    return not WEAK_KEYS.intersection(parts) and len(set(parts)) == len(parts)


def des_subkey(key, segment, key_bytes):
    for retry in range(256):
        info = b"keypadd sub" + be64(segment) + bytes([retry])
        material = hkdf_expand(key, info, key_bytes + 8)
        subkey = odd_parity(material[:key_bytes])
        if strong(subkey):
            return subkey, material[key_bytes:]
    raise AssertionError("256 weak keys in a row")


# RFC 2268 2: bytes derived from the digits of pi.
PI_TABLE = bytes.fromhex(
    "d978f9c419ddb5ed28e9fd794aa0d89dc67e37832b76538e624c6488448bfba2"
    "179a59f587b34f1361456d8d09817d32bd8f40eb86b77b0bf09521225c6b4e82"
    "54d66593ce60b21c7356c014a78cf1dc1275ca1f3bbee4d1423dd430a33cb626"
    "6fbf0eda4669075727f21d9bbc944303f811c7f690ef3ee706c3d52fc8661ed7"
    "08e8eade8052eef784aa72ac354d6a2a961ad2715a1549744b9fd05e0418a4ec"
    "c2e0416e0f51cbcc2491af50a1f47039997c3a8523b8b47afc02365b25559731"
    "2d5dfa98e38a92ae05df2910676cbac9d300e6cfe19ea82c6316013f58e289a9"
    "0d38341bab33ffb0bb480c5fb9b1cd2ec5f3db47e5a59c770aa62068fe7fc1ad"
)


def rc2_round_keys(key, effective_bits):
    """RFC 2268 2."""
    kept = -(-effective_bits // 8)
    buffer = bytearray(key)
    for at in range(len(key), 128):
        buffer.append(PI_TABLE[(buffer[at - 1] + buffer[at - len(key)]) % 256])
    buffer[128 - kept] = PI_TABLE[buffer[128 - kept] & 0xFF >> 8 * kept - effective_bits]
    for at in reversed(range(128 - kept)):
        buffer[at] = PI_TABLE[buffer[at + 1] ^ buffer[at + kept]]
    return struct.unpack("<64H", buffer)


def rc2_encrypt(round_keys, block):
    """RFC 2268 3: five, six and five rounds of mixing with a round of mashing between them."""
    words = list(struct.unpack("<4H", block))
    for number in range(16):
        for at, shift in enumerate((1, 2, 3, 5)):
            before, two, three = words[at - 1], words[at - 2], words[at - 3]
            mixed = words[at] + round_keys[4 * number + at] + (before & two) + (~before & three)
            words[at] = (mixed << shift | (mixed & 0xFFFF) >> 16 - shift) & 0xFFFF
        if number in (4, 10):
            for at in range(4):
                words[at] = words[at] + round_keys[words[at - 1] & 63] & 0xFFFF
    return struct.pack("<4H", *words)


def keystream_64(key, cipher, number, length):
    segment, slot = number >> SEGMENT_BITS, number & ((1 << SEGMENT_BITS) - 1)
    blocks = range(-(-length // 8))
    assert len(blocks) <= 1 << BLOCK_BITS
    if cipher == "rc2-40":
        material = hkdf_expand(key, b"keypadd sub" + be64(segment) + b"\0", 5 + 8)
        subkey, iv = rc2_round_keys(material[:5], 40), material[5:]
    else:
        key_bytes = {"des": 8, "3des": 24}[cipher]
        subkey, iv = des_subkey(key, segment, key_bytes)
    counters = [xor(iv, be64(slot << BLOCK_BITS | block)) for block in blocks]
    if cipher == "rc2-40":
        return b"".join(rc2_encrypt(subkey, counter) for counter in counters)[:length]
    # Single DES is triple DES with one key three times.
    engine = Cipher(TripleDES(subkey * (24 // key_bytes)), modes.ECB()).encryptor()
    return engine.update(b"".join(counters))[:length]


def aes_keystream(key, nonce, length):
    """RFC 3686 4: the counter starts at 1."""
    mode = modes.CTR(nonce + (1).to_bytes(4, "big"))
    return Cipher(algorithms.AES(key), mode).encryptor().update(bytes(length))


def seal(suite, key, iv, number, header, payload):
    nonce = xor(iv, number.to_bytes(12, "big"))
    if suite.endswith("-gcm"):
        return AESGCM(key).encrypt(nonce, payload, header)
    if suite == "chacha20-poly1305":
        return ChaCha20Poly1305(key).encrypt(nonce, payload, header)

    # CIPHER-ctr-MAC, null-MAC or null.
    cipher, mac = suite.split("-ctr-") if "-ctr-" in suite else ("null", suite[5:] or "null")
    if cipher == "null":
        ciphertext = payload
    elif cipher in ("des", "3des", "rc2-40"):
        ciphertext = xor(payload, keystream_64(key, cipher, number, len(payload)))
    else:
        key_bytes = {"aes-128": 16, "aes-256": 32}[cipher]
        enc = hkdf_expand(key, b"keypadd enc", key_bytes)
        ciphertext = xor(payload, aes_keystream(enc, nonce, len(payload)))
    if mac == "null":
        return ciphertext + bytes(TAG_BYTES)

    digest = mac.removeprefix("hmac-")
    mac_key = hkdf_expand(key, b"keypadd mac", hashlib.new(digest).digest_size)
    covered = be64(number) + be64(len(header)) + header + ciphertext
    return ciphertext + hmac.digest(mac_key, covered, digest)[:TAG_BYTES]


def random(length, *label):
    return hashlib.shake_128(repr(label).encode()).digest(length)


def packets():
    """(suite, key, iv, packet number, header, payload), every suite with two keys."""
    count = itertools.count()
    for place, suite in enumerate(SUITES):
        lengths = PAYLOAD_BYTES + [JUMBO_BYTES] * (suite in JUMBO_SUITES)
        for at, payload_bytes in enumerate(lengths):
            which = at % 2
            key = random(16 if suite == "aes-128-gcm" else 32, suite, which, "key")
            iv = random(12, suite, which, "iv")
            number = PACKET_NUMBERS[(at + place) % len(PACKET_NUMBERS)]
            header = random(next(count) % HEADER_BYTES, suite, at, "header")
            payload = random(payload_bytes, suite, at, "payload")
            yield suite, key, iv, number, header, payload


def text():
    assert len(WEAK_KEYS) == 64
    known = rc2_round_keys(bytes.fromhex("88bca90e90875a"), 64)  # RFC 2268 5
    assert rc2_encrypt(known, bytes(8)).hex() == "6ccf4308974c267f"
    blocks = [HEAD]
    for suite, key, iv, number, header, payload in packets():
        sealed = seal(suite, key, iv, number, header, payload)
        fields = {
            "suite": suite,
            "key": key.hex(),
            "iv": iv.hex(),
            "packet_number": str(number),
            "header": header.hex(),
            "payload": payload.hex(),
            "sealed": sealed.hex(),
        }
        blocks.append("".join(f"{name} = {value}".rstrip() + "\n" for name, value in fields.items()))
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
