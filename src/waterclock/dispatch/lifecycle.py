"""How a program is told to end: the first SIGTERM or SIGINT asks, and it ends in order.

A second signal finds what was set before, so a Ctrl-C pressed twice ends the program as ever.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first signal. Off the main thread nothing is done: signals do not come
    there."""
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
