"""A handler of HTTP run for somebody who is no HTTP connection: what it answers, now or later."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, cast

from waterclock.server.http.messages import (
    Answered,
    Handler,
    Later,
    Pending,
    Request,
    Response,
    Streamed,
)
from waterclock.server.http.problems import problem_of
from waterclock.server.http.sending import dispose

if TYPE_CHECKING:
    from waterclock.server.http.connection import HttpConnection


class Asking(Protocol):
    """Who asked."""

    @property
    def is_waiting(self) -> bool:
        """It is still there."""
        ...

    def take(self, answer: Response | Streamed) -> None:
        """Take the answer; who takes a Streamed pulls its pieces and disposes of it."""
        ...


class Reply:
    """One answer on its way to who asked. To a `Pending` it is the connection."""

    __slots__ = ("_asking", "_tasks", "_work")

    def __init__(self, asking: Asking, tasks: asyncio.TaskGroup) -> None:
        self._asking = asking
        self._tasks = tasks
        self._work: asyncio.Task[None] | Pending | None = None

    def run(self, handler: Handler, request: Request) -> None:
        """Have a request answered."""
        try:
            answered = handler(request)
        except Exception as error:
            answered = problem_of(error, request)
        self.begin(answered, request)

    def begin(self, answered: Answered | Later, request: Request) -> None:
        """Give what a handler returned, or will."""
        if isinstance(answered, Coroutine):
            self._work = self._tasks.create_task(self._run_later(answered, request))
        else:
            self.wait_for(answered, request)

    def wait_for(self, answered: Answered, request: Request) -> None:
        """Give what a handler returned, now or when it is there."""
        if isinstance(answered, Pending):
            early = answered.attach(cast("HttpConnection", self), request)
            if early is None:
                self._work = answered
                return
            answered = early
        self._give(answered)

    def cancel(self) -> None:
        """Stop: who asked has gone."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()

    def settle(self, response: Response | Streamed, flags: int, origin: bytes | None) -> bool:
        """Give what was waited for; False if nobody is there to take it."""
        self._work = None
        return self._give(response)

    async def _run_later(self, later: Coroutine[Any, Any, Answered], request: Request) -> None:
        try:
            answered = await later
        except Exception as error:
            answered = problem_of(error, request)
        self._work = None
        self.wait_for(answered, request)

    def _give(self, response: Response | Streamed) -> bool:
        if not self._asking.is_waiting:
            dispose(response)
            return False
        self._asking.take(response)
        return True
