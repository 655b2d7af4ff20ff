"""Fsyncs that the kernel runs by itself, asked for and heard of without a thread (Linux AIO).

`io_submit(2)` hands an fdatasync to the kernel's own workers and returns, however slow the disk is:
`aio_fsync` of the kernel's fs/aio.c does no more than put it on a work queue. When it is over, the
kernel writes to an eventfd that the loop watches beside its sockets. A thread that runs an fsync
has to be woken, to fight for the interpreter's lock before it and after it, and to wake the loop.

It is the same fdatasync of the same open file, so it tells of the same errors, each to one asker.
The file's descriptor is kept open until it is over, and then it is looked whether the file was
deleted, as `OsFile.sync` does.

It is used on the file systems of `file_system.KINDS`, whose inodes are in memory: to look at the
links of a file over a network would hold up the loop. Where the kernel or a sandbox refuses it,
fsyncs are run on threads.
"""

import asyncio
import ctypes
import errno
import logging
import os
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from waterclock.model.errors import Closed
from waterclock.storage.folders.file_system import KINDS, kind_of, nearest
from waterclock.storage.folders.folder import File
from waterclock.storage.folders.os_folder import OsFile

NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Of io_setup, io_destroy, io_getevents and io_submit: no library has functions for them that can
be counted on."""
EVENTS_MAX = 32
"""More than are ever asked for at once."""
FDSYNC, TELL_EVENTFD = 3, 1
PASSING = frozenset({errno.EAGAIN, errno.EINTR, errno.ENOMEM})
"""What may be otherwise the next time."""

# struct iocb and struct io_event of linux/aio_abi.h, on machines whose first byte is the lowest.
_IOCB = struct.Struct("<QIIHhIQQqQII")
_EVENT = struct.Struct("<QQqq")

events = logging.getLogger(__name__)


class AskedFdatasync:
    """An fdatasync that the kernel was asked for."""

    __slots__ = ("_aio", "_error", "_file", "_number", "is_over")

    def __init__(self, aio: "AioFsyncs", file: OsFile, number: int) -> None:
        self._aio = aio
        self._file = file
        self._number = number
        self._error: Exception | None = None
        self.is_over = False

    def __repr__(self) -> str:
        return f"<AskedFdatasync of {self._file.name}{', over' if self.is_over else ''}>"

    def result(self) -> None:
        """Return when it is over; raise StorageFailed if it failed. From any thread."""
        if not self.is_over:
            self._aio.wait_for(self)
        if self._error is not None:
            raise self._error

    def end(self, code: int) -> None:
        """Take in how it ended: with 0, or with the number of an error, below 0."""
        try:
            self._file.synced(self._number, -code)
        # Any error: after it nobody knows what was written, and an owner may wait for it.
        except Exception as error:
            self._error = error
        self._file.descriptor.__exit__()
        self.is_over = True  # last: it is asked without a lock


class AioFsyncs:
    """Fsyncs by the kernel, as `storage.fsyncs.AsyncFsyncs` has it; find them with `aio_at`."""

    def __init__(self, device: int) -> None:
        """For the files of one file system. Raises OSError where the kernel has none for us."""
        self._device = device
        self._is_refused = self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: dict[int, AskedFdatasync] = {}
        self._ended: deque[AskedFdatasync] = deque()
        self._keys = count(1)
        self._taking = threading.Lock()
        """Held by who takes in what is over, and while somebody waits for that."""
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        self._iocbs_at = ctypes.addressof(self._iocbs)
        self._events = ctypes.create_string_buffer(_EVENT.size * EVENTS_MAX)
        self._events_at = ctypes.addressof(self._events)
        # What returns at once keeps the interpreter's lock: to have it back would take longer.
        self._at_once = _system_call(ctypes.PyDLL(None, use_errno=True))
        self._waiting = _system_call(ctypes.CDLL(None, use_errno=True))
        setup, self._destroy, self._getevents, self._submit = _numbers()
        context = ctypes.c_ulong(0)
        if self._at_once(setup, EVENTS_MAX, ctypes.addressof(context), 0, 0, 0):
            raise _error()
        self._context = context.value
        try:
            self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._at_once(self._destroy, self._context, 0, 0, 0, 0)
            raise

    def __repr__(self) -> str:
        return f"<AioFsyncs {len(self._asked)} under way>"

    def begin(self, file: File) -> AskedFdatasync | None:
        """Ask for an fdatasync of a file; None if it must be run on a thread."""
        if self._is_refused or not isinstance(file, OsFile) or file.device != self._device:
            return None
        try:
            number = file.descriptor.__enter__()
        except Closed:
            return None
        key = next(self._keys)
        self._asked[key] = asked = AskedFdatasync(self, file, number)
        fields = (key, 0, 0, FDSYNC, 0, number, 0, 0, 0, 0, TELL_EVENTFD, self._eventfd)
        _IOCB.pack_into(self._iocb, 0, *fields)
        if self._at_once(self._submit, self._context, 1, self._iocbs_at, 0, 0) == 1:
            return asked
        error = _error()  # nothing was begun
        del self._asked[key]
        file.descriptor.__exit__()
        if error.errno not in PASSING:
            self._is_refused = True
            events.warning("aio_refused reason=%s", error)
        return None

    def listen(self, loop: asyncio.AbstractEventLoop, on_ended: Callable[[], None]) -> None:
        """Have the loop call whenever there are some that `ended`."""
        self._loop = loop
        loop.add_reader(self._eventfd, on_ended)

    def ended(self) -> Sequence[AskedFdatasync]:
        """Return those that are over, each once."""
        try:  # noqa: SIM105 - a `with` is an object more, for each publish
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            pass
        # Else somebody waits, and tells of all that he takes in.
        if self._taking.acquire(blocking=False):
            try:
                self._take(self._at_once, 0)
            finally:
                self._taking.release()
        ended: list[AskedFdatasync] = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def wait_for(self, asked: AskedFdatasync) -> None:
        """Return when it is over. From any thread."""
        while not asked.is_over:
            with self._taking:
                if not asked.is_over:
                    self._take(self._waiting, 1)
            os.eventfd_write(self._eventfd, 1)  # the loop may have been kept from looking

    def _take(self, call: Callable[..., int], least: int) -> None:
        """Take in what is over; wait until there are so many, or a signal comes."""
        found = call(self._getevents, self._context, least, EVENTS_MAX, self._events_at, 0)
        if found < 0:
            error = _error()
            if error.errno != errno.EINTR:
                raise error
        for number in range(found):
            key, _, code, _ = _EVENT.unpack_from(self._events, number * _EVENT.size)
            asked = self._asked.pop(key)
            asked.end(code)
            self._ended.append(asked)

    def close(self) -> None:
        """Wait for those that are under way, and take no more; in the loop that listens. Again is
        harmless."""
        if self._is_closed:
            return
        self._is_closed = self._is_refused = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._eventfd)
        with self._taking:
            while self._asked:
                self._take(self._waiting, 1)
        self._at_once(self._destroy, self._context, 0, 0, 0, 0)
        os.close(self._eventfd)


def aio_at(path: Path) -> AioFsyncs | None:
    """Return the kernel's fsyncs for the files of a folder, made or to be made, if it has any."""
    if sys.platform != "linux":
        return None
    try:
        device = os.stat(nearest(path)).st_dev
        if (kind := kind_of(device)) in KINDS:
            return AioFsyncs(device)
        reason = f"the file system is {kind or 'not known'}"
    except OSError as error:
        reason = str(error)
    events.info("fsyncs_run_on_threads reason=%s", reason)
    return None


def _numbers() -> tuple[int, int, int, int]:
    found = NUMBERS.get(os.uname().machine)
    # A process of 32 bits has other numbers on the same machine.
    if found is None or sys.maxsize <= 1 << 32:
        raise OSError(errno.ENOSYS, f"no system calls are known for {os.uname().machine}")
    return found


def _system_call(library: ctypes.CDLL) -> Callable[..., int]:
    call = library.syscall
    call.restype, call.argtypes = ctypes.c_long, [ctypes.c_long] * 6
    return call


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
