"""An event loop on a thread of its own, for programs that have none.

The client lives there, from connecting to hanging up; calls are handed over and waited for. The
thread is a daemon: a program that forgets to close ends all the same.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from waterclock.client.client import Client
from waterclock.model.errors import Closed

Result = TypeVar("Result")


class Background:
    """Runs a client's coroutines for other threads."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._ready: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._live, name="waterclock-client", daemon=True)

    def start(self) -> Client:
        """Connect; raises what connecting raises."""
        self._thread.start()
        return self._ready.result()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and return its result; an interrupted wait cancels it."""
        if self._loop is None or not self._thread.is_alive():
            work.close()
            raise Closed("the client is not open: use it inside `with`")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the blocking client cannot be used on its own loop")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Close the client and wait until it has hung up. Again is harmless."""
        if self._loop is not None and self._closing is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
        if self._thread.ident is not None:
            self._thread.join()

    def _live(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        async with self._make() as client:
            self._loop = asyncio.get_running_loop()
            self._closing = asyncio.Event()
            self._ready.set_result(client)
            await self._closing.wait()
