"""The workers that run the handler: coroutines for async functions, else threads."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from waterclock.dispatch.worker.handlers import Delivery, Handler
from waterclock.runtime.worker_pool import CoroutinePool, Settle, ThreadPool, WorkerPool

Item = tuple[bytes, int, bytes, int, object]
"""uuid, birth in ms, body, deliveries, and the session it came by."""
Result = tuple[Item, object]
"""An item and what came of it: what is to be written, None, or the error."""
Parse = Callable[[bytes], Any]
Call = Callable[[Item], object]
AsyncCall = Callable[[Item], Awaitable[object]]


class Spans(Protocol):
    """Puts spans around calls (`tracing.py`)."""

    def around(self, call: Call) -> Call: ...

    def around_async(self, call: AsyncCall) -> AsyncCall: ...


def handler_pool(
    handler: Handler,
    *,
    count: int,
    parse: Parse,
    prepare: Callable[[object], object],
    settle: Settle[Item],
    tasks: asyncio.TaskGroup,
    spans: Spans | None = None,
) -> WorkerPool[Item]:
    """Return the workers of a handler. What comes of an item is what `prepare` makes of what the
    handler returned, None if it returned that, or the error."""

    def args(item: Item) -> tuple[object, ...]:
        parsed = parse(item[2])
        if handler.wants_delivery:
            return parsed, Delivery(item[0], item[1], item[3])
        return (parsed,)

    def call(item: Item) -> object:
        value = handler.call(*args(item))
        return None if value is None else prepare(value)

    async def call_async(item: Item) -> object:
        try:
            value = await handler.call(*args(item))
            return None if value is None else prepare(value)
        except (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
            raise  # the program ends, or the function cancelled its task
        except BaseException as error:  # one that calls sys.exit fails, and takes nobody along
            return error

    pool: WorkerPool[Item]
    if handler.is_async:
        awaited = call_async if spans is None else spans.around_async(call_async)
        pool = CoroutinePool(awaited, tasks=tasks, settle=settle)
    else:
        called = call if spans is None else spans.around(call)
        pool = ThreadPool(called, tasks=tasks, settle=settle, name="handler")
    pool.start(count)
    return pool
