"""Reading a file that is copied: by its descriptor, so that a bad sector is an error and no end."""

import os

from waterclock.model.errors import StorageFailed


def read_at(number: int, position: int, size: int) -> bytes:
    """Return so many bytes of a file, on any thread; raise StorageFailed if they are not there."""
    parts: list[bytes] = []
    while size:
        try:
            data = os.pread(number, size, position)
        except OSError as error:
            raise StorageFailed(f"read byte {position}: {error.strerror}") from error
        if not data:
            raise StorageFailed(f"read byte {position}: the file ends before it")
        parts.append(data)
        position += len(data)
        size -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)
