"""Seeds played side by side, in processes that share nothing."""

import resource
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
FEW = 4
"""So few are played here: it takes a second to start a process."""


def side_by_side(
    play: Callable[[T], R], tasks: Sequence[T], processes: int, *, chunk: int = 1
) -> Iterator[R]:
    """Yield what came of each task, as they end. `play` is a function of a module."""
    if processes == 1 or len(tasks) < FEW:
        yield from map(play, tasks)
        return
    with get_context("spawn").Pool(min(processes, len(tasks))) as pool:
        yield from pool.imap_unordered(play, tasks, chunksize=chunk)


def cpu_s() -> float:
    """Return what this process and those that have ended for it took of the CPU."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
