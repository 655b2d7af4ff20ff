"""Parts of what is written with one call: counted and cut off, and never copied."""

from collections.abc import Sequence

Bytes = bytes | bytearray | memoryview


def byte_count(part: Bytes) -> int:
    """Return the length of a part in bytes, whatever its items."""
    return part.nbytes if isinstance(part, memoryview) else len(part)


def after(parts: Sequence[Bytes], skip: int) -> list[memoryview]:
    """Return what follows the first `skip` bytes of `parts`, not copied, empty parts left out."""
    rest = []
    for part in parts:
        count = byte_count(part)
        if skip < count:
            rest.append(memoryview(part).cast("B")[skip:])
        skip = max(0, skip - count)
    return rest
