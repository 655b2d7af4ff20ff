"""Ways to harm bytes."""

import struct
from random import Random

NUMBERS = (0, 1, 2, 3, 5, 8, 13, 255, 2**16, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -1, -(2**63))
"""Lengths, offsets and counts that code might not expect."""


def flipped(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def mangled(body: bytes, random: Random) -> bytes:
    """Return the bytes flipped, overwritten, cut or spliced in a few places."""
    data = bytearray(body)
    for _ in range(random.choice([1, 1, 2, 4])):
        # The metadata comes first and is where the interesting lies are.
        at = random.randrange(min(len(data), random.choice([64, 400, len(data)])))
        other = random.randrange(len(data))
        match random.randrange(5):
            case 0:
                data[at] ^= 1 << random.randrange(8)
            case 1:
                data[at : at + 8] = struct.pack("<q", random.choice(NUMBERS))
            case 2:
                data[at : at + 4] = struct.pack("<q", random.choice(NUMBERS))[:4]
            case 3:
                data[at : at + 16] = data[other : other + 16]
            case _ if random.random() < 0.2:
                del data[max(at, 1) :]
    return bytes(data)
