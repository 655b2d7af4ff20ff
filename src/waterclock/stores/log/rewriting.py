"""Writing the log of streams anew, without the rows that are of no use.

The partition log's own compaction does the work (`waterclock.storage.rewrite`): it keeps, instead
of the latest message of each key, the rows that the index says are of use. Segments are rewritten
oldest first, so a removal is still there as long as a message it removed is.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewrite import Pass, Wanted

Int64s = npt.NDArray[np.int64]
T = TypeVar("T")


async def rewrite(
    log: PartitionStore, living: Int64s, is_open: Callable[[], bool], *, now_ms: int
) -> bool:
    """Leave only rows at these offsets, sorted, in all closed segments; tell if it was finished.

    It ends early once the log is to be closed.
    """
    log.run_jobs()  # side-cars of what was sealed, before it is rewritten
    wanted = Wanted(keep_from=log.end, by_key=True, tombstone_grace_ms=0)
    rewriting = Pass(log, wanted, now_ms=now_ms)
    rewriting.latest = living
    loop = asyncio.get_running_loop()
    for job in rewriting.jobs():
        await to_the_end(loop.run_in_executor(None, job.run))
        if not is_open():
            return False
        job.finish()
    return True


async def to_the_end(work: "asyncio.Future[T]") -> T:
    """Wait for work on a thread; if we are cancelled, still until it has ended."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
