"""A TaskGroup that raises what went wrong as it was, not wrapped in a group.

Callers of a node or a server want its error, not the shape of its tasks. Of several errors the
first that is ours is told; the group is its cause.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waterclock.model.errors import WaterclockError


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Own tasks while inside; see `asyncio.TaskGroup`."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as problems:
        raise first_error(problems) from problems


def first_error(problems: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return one error of a group: the first of ours, or the first of all."""
    leaves = list(_leaves(problems))
    return next((leaf for leaf in leaves if isinstance(leaf, WaterclockError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]
