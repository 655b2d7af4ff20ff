"""Something asynchronous that runs in a thread of its own, beside a test that is not."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

import uvloop

Opened = TypeVar("Opened")


@contextmanager
def aside(opening: Callable[[], AbstractAsyncContextManager[Opened]]) -> Iterator[Opened]:
    """Open something in a loop of its own; close it at the end. What fails there is raised here."""
    is_over, started = threading.Event(), threading.Event()
    opened: list[Opened] = []
    failed: list[BaseException] = []

    async def run() -> None:
        async with opening() as it:
            opened.append(it)
            started.set()
            await asyncio.to_thread(is_over.wait)

    def work() -> None:
        try:
            uvloop.run(run())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        started.wait()
        if opened:
            yield opened[0]
    finally:
        is_over.set()
        thread.join()
        if failed:
            raise failed[0]
