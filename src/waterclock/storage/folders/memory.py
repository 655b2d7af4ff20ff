"""Giving memory back to the system after something large has been gone through.

Pages of a mapped file that were looked at count as memory of the process until the system needs
them elsewhere: `release_pages` leaves them to the page cache alone, whence they come back at the
cost of a minor fault. What numpy frees stays in the allocator's hands between what is still in
use: `trim` returns whole pages of it. Both only change what the process is seen to use.
"""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from waterclock.storage.folders.mapped_file import MappedFile


def release_pages(array: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> None:
    """Give up the pages of the whole file an array is mapped from, if it is mapped from one."""
    holder: object = array
    while isinstance(holder, np.ndarray | memoryview):
        holder = holder.base if isinstance(holder, np.ndarray) else holder.obj
    if isinstance(holder, MappedFile):
        holder.release_pages()


def trim() -> None:
    """Return what was freed: some milliseconds for each hundred megabytes."""
    library = _allocator()
    if library is not None:
        library.malloc_trim(0)


@lru_cache(maxsize=1)
def _allocator() -> Any:  # noqa: ANN401 - a library has whatever functions it has
    """Return the C library, if it has the function: glibc alone does."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
