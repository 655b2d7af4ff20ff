"""A file mapped into memory for reading, without a descriptor of its own.

Python's `mmap` keeps a copy of the descriptor for as long as the map lives, to be able to resize
it. A node with a thousand partitions would hold a thousand of them for nothing.
"""

import ctypes
import mmap
import os
from typing import Any

import numpy as np

_LIBRARY = ctypes.CDLL(None, use_errno=True)
_ADDRESS, _LENGTH, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_LIBRARY.mmap.argtypes = (_ADDRESS, _LENGTH, _INT, _INT, _INT, ctypes.c_long)
_LIBRARY.mmap.restype = _ADDRESS
_LIBRARY.munmap.argtypes = (_ADDRESS, _LENGTH)
_LIBRARY.madvise.argtypes = (_ADDRESS, _LENGTH, _INT)
_FAILED = ctypes.c_void_p(-1).value


class MappedFile:
    """The first bytes of a file. They stay mapped until the last view of them is gone."""

    def __init__(self, number: int, size: int) -> None:
        """Map `size` > 0 bytes, or raise OSError; the descriptor may be closed after it."""
        self._size = 0
        address = _LIBRARY.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, number, 0)
        if address in (None, _FAILED):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._address: int = address
        self._size = size

    def __repr__(self) -> str:
        return f"<MappedFile {self._size} bytes>"

    def __del__(self) -> None:
        if self._size:
            _LIBRARY.munmap(self._address, self._size)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Where numpy finds the bytes, read-only; an array made of this keeps it alive."""
        return {
            "data": (self._address, True),
            "shape": (self._size,),
            "typestr": "|u1",
            "version": 3,
        }

    def view(self) -> memoryview:
        """Return all of it; each slice of that, too, keeps this alive."""
        return np.asarray(self).data

    def release_pages(self) -> None:
        """Leave the pages to the page cache alone. Not every file system takes this advice, and
        nobody needs to."""
        if hasattr(mmap, "MADV_DONTNEED"):
            _LIBRARY.madvise(self._address, self._size, mmap.MADV_DONTNEED)
