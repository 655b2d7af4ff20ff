"""Work that is brought to its end, also if its caller has left.

A caller may be cancelled at any await. Where half of the work would leave something behind of which
nothing knows, the work is a task of the node's own, and the caller only waits for its answer.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from waterclock.model.errors import Stopping

T = TypeVar("T")

log = logging.getLogger(__name__)


async def run_detached(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, T]) -> T:
    """Have work done by a task of the group; return or raise what it does."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    running = _answered(work, answer)
    try:
        tasks.create_task(running)
    except RuntimeError as error:  # the group takes no more: it has ended, or is about to
        running.close()
        work.close()
        raise Stopping("the node is stopping") from error
    return await answer


async def _answered(work: Coroutine[Any, Any, T], answer: asyncio.Future[T]) -> None:
    """Do it and give the answer. A problem is its caller's, not that of the group."""
    try:
        result = await work
    except asyncio.CancelledError:
        if not answer.done():
            answer.set_exception(Stopping("the node is stopping"))
        raise
    except Exception as error:
        if answer.done():
            name = getattr(work, "__qualname__", repr(work))
            log.warning("failed_unheard work=%s error=%s", name, error)
        else:
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(result)
