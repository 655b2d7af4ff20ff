"""How a program ends: the first SIGTERM or SIGINT asks it to, and it ends in order; or by an error.
SIGHUP ends none that has something to read again.

The second signal finds what was set before, so a Ctrl-C pressed twice ends the program as ever,
unless the program has an end of its own for it.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from waterclock.model.errors import WaterclockError

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(
    stop: Callable[[], None], *, stop_at_once: Callable[[], None] | None = None
) -> Iterator[None]:
    """Call `stop` at the first signal, and `stop_at_once` at those after it. Off the main thread
    nothing is done: signals do not come there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {each: signal.getsignal(each) for each in SIGNALS}

    def put_back() -> None:
        for each, handler in before.items():
            loop.remove_signal_handler(each)
            signal.signal(each, handler)
        before.clear()

    is_asked = False

    def asked() -> None:
        nonlocal is_asked
        if stop_at_once is None:
            put_back()
        elif is_asked:
            stop_at_once()
        is_asked = True
        stop()

    for each in SIGNALS:
        loop.add_signal_handler(each, asked)
    try:
        yield
    finally:
        put_back()


@contextmanager
def calling_on_hangup(reload: Callable[[], None]) -> Iterator[None]:
    """Call `reload` at each SIGHUP, which would end the program. Off the main thread nothing is
    done: signals do not come there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, before)


def first_error(
    problems: BaseExceptionGroup[BaseException],
    kinds: tuple[type[BaseException], ...] = (WaterclockError,),
) -> BaseException:
    """Return one error of a group: the first of these kinds, or the first of all."""
    error: BaseException = problems.subgroup(kinds) or problems
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def raise_single(group: BaseExceptionGroup[BaseException]) -> None:
    """Raise what a task group failed with: the one error, if it is one."""
    errors: BaseException = group
    while isinstance(errors, BaseExceptionGroup) and len(errors.exceptions) == 1:
        errors = errors.exceptions[0]
    raise errors from errors.__cause__
