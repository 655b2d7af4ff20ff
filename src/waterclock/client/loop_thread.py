"""An event loop on a thread of its own, on which the blocking client runs the asyncio one.

    with waterclock.connect_blocking() as client:
        client.publish("orders", b"...", at="+5s")
        with client.subscribe("orders", group="billing") as messages:
            for message in messages:
                message.ack()

The asyncio client lives on the loop, from connecting to hanging up; calls are handed over and
waited for. So the blocking client is safe to use from several threads, their publishes share
batches, and heartbeats go on however long a message is worked on. Its classes are generated
(`make sync`) from those of the asyncio client.

The thread is a daemon: a program that forgets to close ends all the same.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from waterclock.model.errors import Closed

Result = TypeVar("Result")
Item = TypeVar("Item")
Twin = TypeVar("Twin")


class LoopThread:
    """Runs a client's coroutines for other threads, between `start` and `stop`."""

    def __init__(self, client: AbstractAsyncContextManager[object]) -> None:
        self._client = client
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._closing: asyncio.Event

    def start(self) -> None:
        """Connect; raises what connecting raises."""
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._live, args=(ready,), name="waterclock-client", daemon=True
        )
        self._thread.start()
        ready.result()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and return its result; an interrupted wait cancels it."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Have a coroutine run on the loop; the caller waits for its result when it wants to."""
        if self._thread is None or not self._thread.is_alive():
            work.close()
            raise Closed("the client is not open: use it inside `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[[], Result]) -> Result:
        async def call() -> Result:
            return function()

        return self.run(call())

    def each(self, items: AsyncIterator[Item]) -> Iterator[Item]:
        """Yield the items of an async generator, waiting for each."""

        async def following() -> Item | None:
            return await anext(items, None)

        async def close() -> None:
            if (aclose := getattr(items, "aclose", None)) is not None:
                await aclose()

        try:
            while (item := self.run(following())) is not None:
                yield item
        finally:
            with suppress(Closed):  # the loop has closed it with all else
                self.run(close())

    def stop(self) -> None:
        """Close the client and wait until it has hung up; raises what closing raises. Again is
        harmless."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            if thread.is_alive():
                self._loop.call_soon_threadsafe(self._closing.set)
            thread.join()
            if self._failure is not None:
                raise self._failure

    def _live(self, ready: concurrent.futures.Future[None]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            # Whatever it is, a thread of the program raises it: the one in `start`, which would
            # wait for ever, or else the one in `stop`.
            if ready.done():
                self._failure = error
            else:
                ready.set_exception(error)

    async def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        async with self._client:
            self._loop = asyncio.get_running_loop()
            self._closing = asyncio.Event()
            ready.set_result(None)
            await self._closing.wait()


class Blocking(Generic[Twin]):
    """A part of the blocking client: its asyncio twin, and the loop that one runs on."""

    def __init__(self, loop: LoopThread, twin: Twin) -> None:
        self._loop = loop
        self._twin = twin


class LoopOwner:
    """The blocking client itself: `with` starts the loop and ends it."""

    _loop: LoopThread

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send what waits and hang up. Again is harmless."""
        self._loop.stop()
