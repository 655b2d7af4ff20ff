"""How a program that runs a pool is told to end: SIGTERM and SIGINT ask, the pool drains.

A second signal is not ours any more: what was set before is put back when the first came, so a
Ctrl-C pressed twice ends the program as it always did.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT. Off the main thread this does nothing, for
    signals come there only."""
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

    def asked() -> None:
        put_back()
        stop()

    for each in SIGNALS:
        loop.add_signal_handler(each, asked)
    try:
        yield
    finally:
        put_back()


def raise_single(group: BaseExceptionGroup[BaseException]) -> None:
    """Raise what a task group failed with: the one error, if it is one."""
    errors: BaseException = group
    while isinstance(errors, BaseExceptionGroup) and len(errors.exceptions) == 1:
        errors = errors.exceptions[0]
    raise errors from errors.__cause__
