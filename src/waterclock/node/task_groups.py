"""A TaskGroup that raises what went wrong as it was, not wrapped in a group.

Callers of a node or a server want its error, not the shape of its tasks. Of several errors the
first that is ours is told; the group is its cause.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waterclock.runtime.lifecycle import first_error


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Own tasks while inside; see `asyncio.TaskGroup`."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as problems:
        raise first_error(problems) from problems
