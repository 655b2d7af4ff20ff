"""An event loop on a thread of its own, for programs that have none.

The client lives there, from connecting to hanging up; calls are handed over and waited for. The
thread is a daemon: a program that forgets to close ends all the same.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from waterclock.client.client import Client
from waterclock.model.errors import Closed

Result = TypeVar("Result")


class LoopThread:
    """Runs a client's coroutines for other threads, between `start` and `stop`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread: threading.Thread | None = None
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
        """Have a coroutine run on the loop; the result is waited for by who wants it."""
        if self._thread is None or not self._thread.is_alive():
            work.close()
            raise Closed("the client is not open: use it inside `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Close the client and wait until it has hung up. Again is harmless."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            if thread.is_alive():
                self._loop.call_soon_threadsafe(self._closing.set)
            thread.join()

    def _live(self, ready: concurrent.futures.Future[None]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        async with self._client:
            self._loop = asyncio.get_running_loop()
            self._closing = asyncio.Event()
            ready.set_result(None)
            await self._closing.wait()
