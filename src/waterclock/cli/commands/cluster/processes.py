"""Processes that end with the one that started them, however that one ends."""

import asyncio
import ctypes
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Sequence
from typing import IO

EXIT_AT_ONCE = 130
LINE_BYTES_MAX = 1 << 20
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


async def start_process(
    words: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    descriptors: Sequence[int] = (),
) -> Process:
    """Start one: out of reach of Ctrl-C, which is for us to pass on, and never to outlive us. Nor
    does it speak to our supervisor, to which one of several is not all. Of our open files it has
    some `descriptors`."""
    env = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=DEVNULL, stdout=stdout, stderr=stderr, limit=LINE_BYTES_MAX, env=env,
        start_new_session=True, preexec_fn=_ending_with(os.getpid()), pass_fds=descriptors,
    )  # fmt: skip


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield what a process says, line by line. One that is too long is left out, as far as it came:
    it must not end who runs the process."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            line = b"(a line is too long to be shown)\n"
        if not line:
            return
        yield line


def _ending_with(parent: int) -> Callable[[], None]:
    """Return what a new process does first, to be asked to stop when its parent has gone."""
    prctl = ctypes.CDLL(None).prctl

    def begin() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it went before that was said
            os._exit(EXIT_AT_ONCE)

    return begin
