"""How the process of a node keeps its memory: two settings, each against a stall that was measured.

Freed blocks are kept. glibc returns large ones to the system at once and takes new ones for the
next answer; each page of those is a fault on first touch. Fetching 4 MiB at a time took the node
6.4 ms of CPU a call, and half of that if blocks up to 32 MiB come from a heap that keeps 256 MiB.

What is there when the node is ready stays, and Python's collector need not look at it again: 60,000
objects of the libraries took each full collection 60 ms, in which nobody was served.
"""

import ctypes
import gc

from waterclock.model.units import MIB

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

MMAP_BYTES = 32 * MIB
"""The most that glibc allows."""
KEPT_BYTES = 256 * MIB


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed; False if it cannot be told (it is not glibc)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    has_raised = mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
    has_kept = mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    return bool(has_raised and has_kept)


def freeze_what_is_there() -> None:
    """Have the collector pass over everything that exists now. Call it once all is loaded."""
    gc.collect()
    gc.freeze()
