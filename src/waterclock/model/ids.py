"""The integers and ids everyone shares.

Distinct integers are distinct types, so that mypy refuses a due time where an offset is meant.

A message without an id is given a UUIDv7 (RFC 9562, section 5.7), kept as 16 bytes:

    48 bits  milliseconds since 1970       ids of later milliseconds sort later
     4 bits  version 7
    12 bits  random                        the same for a whole batch
     2 bits  variant 2
    62 bits  a counter from a random start, one step per message

The counter is the "monotonic random" method of section 6.2. Its first bit starts as zero, so a
batch has 2^61 steps before it could overflow, and two batches of the same millisecond meet with
a chance of about count / 2^72. Who knows one id can guess its neighbours: ids name, they do not
guard.
"""

from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Offset = NewType("Offset", int)
"""The position of a message in its partition."""

Millis = NewType("Millis", int)
"""Milliseconds: since 1970 UTC for a point in time, or a length of time."""

Epoch = NewType("Epoch", int)
"""The epoch of one partition leader; a later leader has a greater one."""

UUID7_ENTROPY_BYTES = 10
"""How many random bytes an id, or a batch of ids, uses."""

_VERSION = 7 << 12
_VARIANT = 1 << 63
_RANDOM_A = (1 << 12) - 1
_COUNTER_START = (1 << 61) - 1


def uuid7(now_ms: Millis, entropy: bytes) -> bytes:
    """Return one id. Bring at least `UUID7_ENTROPY_BYTES` fresh random bytes for each call."""
    assert len(entropy) >= UUID7_ENTROPY_BYTES, len(entropy)
    assert 0 <= now_ms < 1 << 48, now_ms
    high = now_ms << 16 | _VERSION | int.from_bytes(entropy[:2]) & _RANDOM_A
    low = _VARIANT | int.from_bytes(entropy[2:UUID7_ENTROPY_BYTES]) & _COUNTER_START
    return high.to_bytes(8) + low.to_bytes(8)


def uuid7_batch(now_ms: Millis, count: int, entropy: bytes) -> "npt.NDArray[np.uint8]":
    """Return `count` ids as rows of 16 bytes, each greater than the one before.

    The first is `uuid7(now_ms, entropy)`; bring fresh random bytes for each call.
    """
    import numpy as np  # here, for everything imports this module, also what has no batches

    first = uuid7(now_ms, entropy)
    ids = np.empty((count, 2), dtype=">u8")
    ids[:, 0] = int.from_bytes(first[:8])
    ids[:, 1] = np.arange(count, dtype=np.uint64) + np.uint64(int.from_bytes(first[8:]))
    return ids.view(np.uint8)
