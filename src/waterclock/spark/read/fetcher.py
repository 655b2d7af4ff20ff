"""Bringing the frames of a range to a task: ahead of it, but never by more than a few replies.

A thread asks for the next reply while the task decodes the last and Spark takes what it made of it.
Bytes go from the socket into the buffer that Arrow will read; nothing is copied here. What is read
does not change, so a reply that broke off is asked for again from where the last whole one ended.
"""

from collections.abc import Iterator
from queue import Full, Queue
from threading import Event, Thread
from typing import NamedTuple

import pyarrow as pa

from waterclock.model.errors import OffsetOutOfRange
from waterclock.security.credential import Credential
from waterclock.spark.read.http_node import Answer, HttpNode, path_of
from waterclock.spark.read.ranges import Extent, Range, out_of_range

REPLIES_AHEAD = 2
"""Whole replies that wait; one more is on its way, and one with the task."""
STOP_LOOK_S = 0.1


class Reply(NamedTuple):
    """Whole frames, back to back."""

    frames: memoryview
    next_offset: int
    """Where to go on."""
    extent: Extent
    """What the partition had."""


class Fetcher:
    """The frames of one range. Iterate over it once, inside `with`."""

    def __init__(
        self,
        address: str,
        topic: str,
        wanted: Range,
        *,
        fetch_bytes: int,
        with_scheduled: bool,
        retained: int,
        fail_on_data_loss: bool,
        patience_s: float,
        credential: Credential | None = None,
    ) -> None:
        self._node = HttpNode(address, credential=credential, patience_s=patience_s)
        self._wanted = wanted
        self._path = f"{path_of(topic)}/partitions/{wanted.partition}/frames"
        self._query = (
            f"endOffset={wanted.end}&bytesMax={fetch_bytes}"
            f"&deliverableOnly={'false' if with_scheduled else 'true'}"
        )
        self._retained = retained
        self._fail_on_data_loss = fail_on_data_loss
        self._is_over = Event()
        self._replies: Queue[memoryview | BaseException | None] = Queue(REPLIES_AHEAD)
        self._thread = Thread(target=self._run, name="waterclock-fetching", daemon=True)

    def __enter__(self) -> "Fetcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._node.cut()
        self._thread.join()
        self._node.close()

    def __iter__(self) -> Iterator[memoryview]:
        """Yield frames back to back, as they come; raise what kept them from coming."""
        while (reply := self._replies.get()) is not None:
            if isinstance(reply, BaseException):
                raise reply
            yield reply

    # In the thread

    def _run(self) -> None:
        try:
            offset = self._wanted.start
            while offset < self._wanted.end and not self._is_over.is_set():
                reply = self._next(offset)
                offset = reply.next_offset
                if len(reply.frames):
                    self._hand_over(reply.frames)
            self._hand_over(None)
        except BaseException as error:  # whatever it is, the task is to fail with it
            self._hand_over(error)

    def _hand_over(self, reply: memoryview | BaseException | None) -> None:
        while not self._is_over.is_set():
            try:
                return self._replies.put(reply, timeout=STOP_LOOK_S)
            except Full:
                continue

    def _next(self, offset: int) -> Reply:
        path = f"{self._path}?offset={offset}&{self._query}"
        try:
            reply = self._node.ask(path, take_reply)
        except OffsetOutOfRange as error:
            return self._behind_gap(offset, Extent(error.start, error.end))
        if reply.next_offset <= offset:  # nothing is there, though it was when this was planned
            return self._behind_gap(offset, reply.extent)
        # What retention emptied is still spanned by the log, and looks like nothing to read.
        if self._fail_on_data_loss and reply.extent.retained > max(offset, self._retained):
            raise out_of_range(self._wanted.partition, offset, reply.extent)
        return reply

    def _behind_gap(self, offset: int, extent: Extent) -> Reply:
        """Go on where the log does, if data may be lost."""
        if self._fail_on_data_loss:
            raise out_of_range(self._wanted.partition, offset, extent)
        behind = extent.start if offset < extent.start else self._wanted.end
        return Reply(memoryview(b""), behind, extent)


def take_reply(answer: Answer) -> Reply:
    """Read the frames of an answer into memory that Arrow can use as it is."""
    frames = memoryview(pa.allocate_buffer(answer.length)).cast("B")
    filled = 0
    while filled < answer.length:
        count = answer.response.readinto(frames[filled:])
        if not count:
            raise ConnectionError(f"the answer ended after {filled} of {answer.length} bytes")
        filled += count
    # An answer without a body is over only when its end was read.
    answer.response.read()
    extent = Extent(
        answer.number("Waterclock-Start-Offset"),
        answer.number("Waterclock-End-Offset"),
        answer.number("Waterclock-Retained-Offset"),
    )
    return Reply(frames, answer.number("Waterclock-Next-Offset"), extent)
