"""Keep freed memory: batches and frames of megabytes come and go all the time.

glibc returns large blocks to the system as soon as they are free and takes new ones for the next
answer; each page of those is a fault on first touch. Fetching 4 MiB at a time took the node 6.4 ms
of CPU a call, and half of that if blocks up to 32 MiB come from a heap that keeps 256 MiB of what
was freed.
"""

import ctypes

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
