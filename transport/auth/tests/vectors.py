#!/usr/bin/env python3
"""Computes tests/vectors.json: answers of DH-HMAC-CHAP (NVMe Base 8.13.5) made with Python's hmac, hashlib, zlib and pow(), which
share nothing with the crate under test. Run it to see that the file is what it prints:

    transport/auth/tests/vectors.py | diff - transport/auth/tests/vectors.json

Where openssl is there, the primes are compared with those that it knows by name. Long numbers are written as their SHA-256.
"""
import base64
import hashlib
import hmac
import json
import re
import shutil
import subprocess
import zlib

HASHES = {1: hashlib.sha256, 2: hashlib.sha384, 3: hashlib.sha512}
# RFC 7919, appendix A: p = 2^b - 2^(b-64) + (floor(2^(b-130) e) + X) 2^64 - 1.
GROUPS = {1: (2048, 560316, 256), 2: (3072, 2625351, 320), 3: (4096, 5736041, 384), 4: (6144, 15705020, 384),
          5: (8192, 10965728, 448)}
HOST, SUBSYSTEM = "nqn.2014-08.org.nvmexpress:uuid:6b1f3b2c-0f6e-4f0b-9a51-2d8f5f2f7c11", "nqn.2025-01.org.willow-ssd:vectors"


def digits_of_e(bits):
    guard = 64
    term = total = 1 << (bits + guard)
    divisor = 1
    while term:
        term //= divisor
        total += term
        divisor += 1
    return total >> guard


def prime(group):
    bits, x, _ = GROUPS[group]
    number = 2**bits - 2 ** (bits - 64) + (digits_of_e(bits - 130) + x) * 2**64 - 1
    if shutil.which("openssl"):
        asked = ["openssl", "genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", f"group:ffdhe{bits}"]
        lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
        named = base64.b64decode("".join(line for line in lines if not line.startswith("-")))
        assert number.to_bytes(bits // 8, "big") in named, f"openssl has another ffdhe{bits}"
    return number


def some(length, what):
    return hashlib.shake_128(what.encode()).digest(length)


def secret(transform, length):
    key = some(length, f"secret {transform} {length}")
    text = base64.b64encode(key + zlib.crc32(key).to_bytes(4, "little")).decode()
    return key, f"DHHC-1:{transform:02x}:{text}:"


def key_of(transform, key, nqn):
    return hmac.new(key, nqn.encode() + b"NVMe-over-Fabrics", HASHES[transform]).digest() if transform else key


def respond(hash_id, key, challenge, shared, sequence, transaction, role, prover, verifier):
    h = HASHES[hash_id]
    if shared is not None:
        challenge = hmac.new(h(shared).digest(), challenge, h).digest()
    said = challenge + sequence.to_bytes(4, "little") + transaction.to_bytes(2, "little") + b"\0" + role
    return hmac.new(key, said + prover.encode() + b"\0" + verifier.encode(), h).hexdigest()


def main():
    primes = {group: prime(group) for group in GROUPS}
    vectors = []
    for hash_id in HASHES:
        for group in [0, *GROUPS]:
            transform, length = (hash_id + group) % 4, [32, 48, 64][(hash_id * 2 + group) % 3]
            name = f"{hash_id} {group}"
            host_key, host_secret = secret(transform, length)
            controller_key, controller_secret = secret((transform + 1) % 4, length)
            size = HASHES[hash_id]().digest_size
            c1, c2 = some(size, name + " c1"), some(size, name + " c2")
            s1, s2 = 0x01020304 + hash_id, 0xF0E0D0C0 + group
            transaction = 0x1200 + hash_id * 16 + group
            x = y = public_x = public_y = shared = b""
            if group:
                bits, _, exponent_bits = GROUPS[group]
                x, y = some(exponent_bits // 8, name + " x"), some(exponent_bits // 8, name + " y")
                p = primes[group]
                gx, gy = (pow(2, int.from_bytes(n, "big"), p) for n in (x, y))
                public_x, public_y = gx.to_bytes(bits // 8, "big"), gy.to_bytes(bits // 8, "big")
                shared = pow(gy, int.from_bytes(x, "big"), p).to_bytes(bits // 8, "big")
            agreed = shared if group else None
            sha = lambda data: hashlib.sha256(data).hexdigest()
            vectors.append({
                "hash": hash_id, "group": group, "host_nqn": HOST, "subsystem_nqn": SUBSYSTEM,
                "secret": host_secret, "controller_secret": controller_secret,
                "transaction": transaction, "s1": s1, "s2": s2, "c1": c1.hex(), "c2": c2.hex(), "x": x.hex(), "y": y.hex(),
                "prime_sha256": sha(primes[group].to_bytes(GROUPS[group][0] // 8, "big")) if group else sha(b""),
                "public_x_sha256": sha(public_x), "public_y_sha256": sha(public_y), "shared_sha256": sha(shared),
                "r1": respond(hash_id, key_of(transform, host_key, HOST), c1, agreed, s1, transaction, b"HostHost",
                              HOST, SUBSYSTEM),
                "r2": respond(hash_id, key_of((transform + 1) % 4, controller_key, SUBSYSTEM), c2, agreed, s2, transaction,
                              b"Controller", SUBSYSTEM, HOST),
            })
    print(re.sub(r"\n\s{3,}", "\n  ", json.dumps(vectors, indent=1)))


main()
