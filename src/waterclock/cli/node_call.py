"""Asking a node one thing: connect, ask, hang up, by calls that block and load little.

For commands that ask and end; those that go on are run by `connection`. A command does not wait
long for a node that is not there, and its error says how to start one. Ctrl-C and SIGTERM end it
where it waits.
"""

import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from waterclock.model.errors import Unreachable

if TYPE_CHECKING:
    from waterclock.client.unary.client import UnaryClient

Result = TypeVar("Result")

CONNECT_MS = 10_000
"""How long a node may take to answer; one that is busy is worth waiting for."""
EXIT_INTERRUPTED = 130
"""As shells have it for a command that Ctrl-C ended."""


def call(
    address: str | None, work: "Callable[[UnaryClient], Coroutine[Any, Any, Result]]"
) -> Result:
    """Do some work with a client of the node, and return what came of it."""
    with _interruptible():
        return _connected(address, work)


def _connected(
    address: str | None, work: "Callable[[UnaryClient], Coroutine[Any, Any, Result]]"
) -> Result:
    from waterclock.client.errors import NotConnected
    from waterclock.client.settings import ClientSettings
    from waterclock.client.target import target_of
    from waterclock.client.unary.client import UnaryClient
    from waterclock.client.unary.connection import finished

    addresses = target_of(address).addresses
    is_working = False
    try:
        with UnaryClient(address, ClientSettings(connect_timeout_ms=CONNECT_MS)) as client:
            is_working = True
            return finished(work(client))
    except Unreachable as error:
        if is_working and not isinstance(error, NotConnected):
            raise  # it was there: what was asked may have happened
        raise no_node(addresses) from error


def no_node(addresses: Sequence[str]) -> Unreachable:
    """Return the error of a command that found no node."""
    return Unreachable(
        f"no node answers at {', '.join(addresses)}: start one with `waterclock up`, or name"
        " another with --address or WATERCLOCK_ADDRESS"
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: end the command where it waits."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
