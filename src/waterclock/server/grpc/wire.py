"""Protobuf written by hand, where a message holds megabytes of a producer's bytes.

Protobuf's own objects copy such bytes three times, into the field, into the parent and out again,
each time into fresh memory. Here the small fields are serialised by protobuf, and the big one is
joined to them with a single copy. The order of fields on the wire is free, so the big one is last.
See https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from waterclock.node.groups.outbound import DeliveryBatch
from waterclock.v1.broker_pb2 import Messages

Buffer = bytes | memoryview

_LENGTH_DELIMITED = 2


def varint(value: int) -> bytes:
    """Return a number that is not negative in 7-bit groups, least first."""
    assert value >= 0, value
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def opening(field: int, size: int) -> bytes:
    """Return what stands before `size` bytes of a field: its tag and length."""
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(size)


def numbers(field: int, values: npt.NDArray[np.int64]) -> bytes:
    """Return a field of many numbers of 8 bytes (`repeated sfixed64`)."""
    return opening(field, values.nbytes) + values.astype("<i8", copy=False).tobytes()


def times_of(batch: DeliveryBatch) -> bytes:
    """Return the fields of `Messages` that say when the messages of a batch were stored."""
    last = Messages(append_ms=batch.append_ms).SerializeToString()
    if batch.append_times is None:
        return last
    return last + numbers(Messages.APPEND_TIMES_FIELD_NUMBER, batch.append_times)


def nested(fields: Sequence[int], small: Sequence[bytes], big: Sequence[Buffer]) -> bytes:
    """Return a message inside messages, `big` being the last field of the innermost.

    `fields` leads from the outermost field to the one that holds `big`; `small[i]` are the other
    fields, serialised, of the message at depth i.
    """
    size = sum(map(len, big))
    parts: list[Buffer] = []
    for field, others in zip(reversed(fields), reversed(small), strict=True):
        head = opening(field, size)
        parts += [head, others]
        size += len(head) + len(others)
    return b"".join([*reversed(parts), *big])
