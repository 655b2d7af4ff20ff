"""A terminal with a person at it: commands run as they do when somebody watches and types."""

import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl
from typing import NamedTuple

ROWS, COLUMNS = 50, 120


class Seen(NamedTuple):
    """What was on the screen, and how the command ended."""

    exit_code: int
    screen: str


def at_terminal(
    *arguments: object,
    typed: str = "",
    columns: int = COLUMNS,
    awaited: str = "",
    then: Callable[[], object] = lambda: None,
    is_interrupted: bool = False,
) -> Seen:
    """Run `python <arguments>` at a terminal where `typed` was typed beforehand; when the awaited
    words are on the screen, do what is to be done then, and press Ctrl-C if it is interrupted."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    command = [sys.executable, *map(str, arguments)]
    environ = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as run:
        os.close(theirs)
        os.write(ours, typed.encode())
        said = bytearray()
        is_awaited = bool(awaited)
        while part := _read(ours):
            said += part
            if is_awaited and awaited.encode() in said:
                is_awaited = False
                then()
                if is_interrupted:
                    run.send_signal(signal.SIGINT)
    os.close(ours)
    return Seen(run.returncode, said.decode(errors="replace").replace("\r\n", "\n"))


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65_536)
    except OSError:  # the other side is closed: Linux says EIO, not the end
        return b""
