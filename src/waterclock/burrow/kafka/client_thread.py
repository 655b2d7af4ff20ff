"""A thread that owns a client which blocks: calls come to it one after the other.

While the client is in a callback, which must not return before something was done on the loop, the
thread serves the calls that this something makes. So a commit in the midst of a rebalance takes the
same way as any other, and calls are made in the order they came in, always.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class ClientThread:
    """Runs calls in their order; made on the loop that waits for them."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A client that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        """Queue a call; it is made also if nobody waits for the answer."""
        answer: asyncio.Future[R] = self._loop.create_future()
        self._jobs.put((lambda: function(*args, **kwargs), answer))
        return answer

    def wait_for(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """On the thread, in a callback: have the loop run something, and serve it meanwhile."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        future.add_done_callback(lambda _: self._jobs.put(None))
        self._serve()
        return future.result()

    def end(self) -> None:
        """End the thread, after what was queued."""
        self._jobs.put(None)

    def _run(self) -> None:
        self._serve()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, answer = job
            try:
                result = function()
            except BaseException as error:
                self._tell(answer, None, error)
            else:
                self._tell(answer, result, None)

    def _tell(
        self, answer: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, answer, result, error)
        except RuntimeError:  # the loop has ended, and with it the caller
            return


def _settle(answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if answer.done():  # nobody waits any more
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
        answer.exception()  # it is no news to the loop if nobody asks
