"""Working with a node for as long as it takes: connect, work, hang up.

For commands that go on, or move much; those that ask one thing use `node_call`. A command does not
wait long for a node that is not there, and its error says how to start one. Ctrl-C and SIGTERM end
the work where it waits, with all it holds given back.
"""

import asyncio
import os
import signal
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import typer

from waterclock.cli.node_call import CONNECT_MS, EXIT_INTERRUPTED, no_node
from waterclock.model.errors import Unreachable
from waterclock.runtime.lifecycle import first_error

if TYPE_CHECKING:
    from waterclock.client.client import Client

Result = TypeVar("Result")

PROBE_S = 2.0
"""How long a machine may take to accept a connection."""
READER_GONE = "nobody reads stdout any more"


def call(address: str | None, work: "Callable[[Client], Awaitable[Result]]") -> Result:
    """Do some work with a client of the node, and return what came of it."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_interruptible(address, work))
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise typer.Exit(EXIT_INTERRUPTED) from None


def call_until_ended(address: str | None, work: "Callable[[Client], Awaitable[None]]") -> None:
    """Do some work that goes on until it is ended: Ctrl-C, SIGTERM and a pipe whose reader is gone
    are no failures."""

    async def watched(client: "Client") -> None:
        with _ended_with_the_reader():
            await work(client)

    try:
        call(address, watched)
    except typer.Exit as end:
        if end.exit_code != EXIT_INTERRUPTED:
            raise


async def _interruptible(
    address: str | None, work: "Callable[[Client], Awaitable[Result]]"
) -> Result:
    """Let SIGTERM do what the runner lets Ctrl-C do: cancel the task that works."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await _connected(address, work)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _connected(address: str | None, work: "Callable[[Client], Awaitable[Result]]") -> Result:
    from waterclock.client.client import connect
    from waterclock.client.errors import NotConnected
    from waterclock.client.settings import ClientSettings
    from waterclock.client.target import target_of

    addresses = target_of(address).addresses
    is_working = False
    try:
        await _check_listening(addresses)
        async with connect(address, ClientSettings(connect_timeout_ms=CONNECT_MS)) as client:
            is_working = True
            return await _worked(client, work)
    except Unreachable as error:
        if is_working and not isinstance(error, NotConnected):
            raise  # it was there: what was asked may have happened
        raise no_node(addresses) from error


async def _worked(client: "Client", work: "Callable[[Client], Awaitable[Result]]") -> Result:
    """Do the work; of errors of several tasks at once, raise the first that is ours."""
    try:
        return await work(client)
    except ExceptionGroup as problems:
        raise first_error(problems) from problems


async def _check_listening(addresses: Sequence[str]) -> None:
    """Raise Unreachable at once if no process listens there, where the client would wait."""
    problem: Exception | None = None
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(PROBE_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, TimeoutError) as error:
            problem = error
        else:
            writer.close()
            return
    raise Unreachable(str(problem)) from problem


@contextmanager
def _ended_with_the_reader() -> Iterator[None]:
    """Cancel this task when stdout is a pipe that nobody reads any more: it may be long until the
    next message, whose writing would fail."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    if not stat.S_ISFIFO(os.fstat(1).st_mode):
        yield
        return
    loop.add_reader(1, task.cancel, READER_GONE)
    try:
        yield
    finally:
        loop.remove_reader(1)


def node_now_ms(client: "Client") -> int:
    """Return the time by the node's clock, by which "in five seconds" is meant."""
    return client._connection.now_ms()
