"""Receivers that bring a position: from a resume token, or `earliest` and `latest`.

A token of a message in memory is answered by the ring, one of a stored message by the store. When
the store has no more, the receiver waits for the next message, and reads the store again only if it
missed something.
"""

import asyncio
from collections.abc import Coroutine

from waterclock.model.errors import ForgedToken, StoreUnavailable
from waterclock.node.node import Node
from waterclock.server.http.messages import Request
from waterclock.server.http.problems import BadField, problem_of
from waterclock.server.streams.calls import ReceiveCall
from waterclock.server.streams.responses import AHEAD, FORGOTTEN
from waterclock.stores.base import END, Page
from waterclock.streams.effects import Deliver
from waterclock.streams.ring import Item
from waterclock.streams.tokens import STORED, Token
from waterclock.streams.waiters import Receiver

EARLIEST = "earliest"
LATEST = "latest"
CONFIRMED = "confirmed"
"""For a named consumer: after what it has confirmed, by asking with the token of it."""

READ_MS_MIN = 1_000
"""How long a read may take whatever the timeout: with `timeout=0` one wants what is there."""

_REQUEST = Request(b"GET", b"/streams/receive", b"", [], b"")


class StoredReader:
    """Reads for receivers that have a position."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._host = node.streams
        self._tokens = node.stream_tokens

    def resume(self, call: ReceiveCall, receiver: Receiver, token: str) -> None:
        """Give a receiver what follows its token, now or later."""
        if token in (EARLIEST, LATEST):
            work = self._begin(call, receiver, is_latest=token == LATEST)
            self._node.spawn(_answered(call, work))
            return
        if token == CONFIRMED:
            if not receiver.consumer:
                raise BadField("resumeToken", f"{CONFIRMED!r} is for those with a consumerId")
            receiver.is_confirming = True
            self._host.receive(receiver)
            return
        found = self._node.token_of(receiver.stream, token)
        if found.kind == STORED:
            self._node.persister.check_allowed()
            call.is_stored = True
            receiver.after = found.position
            if receiver.consumer:
                self._host.confirm(receiver.stream, receiver.consumer, found.position)
            self.read_on(call, receiver)
        elif call.vocabulary.is_of_store_only:
            raise ForgedToken("resumeToken: is not of a stored message")
        elif found.incarnation != call.incarnation():
            call.gone(0, EARLIEST, FORGOTTEN)
        else:
            receiver.after = found.position
            self._host.receive(receiver)

    def read_on(self, call: ReceiveCall, receiver: Receiver) -> None:
        """Read what the store has; also again, if the receiver missed something."""
        self._node.spawn(_answered(call, self._read(call, receiver)))

    async def _begin(self, call: ReceiveCall, receiver: Receiver, *, is_latest: bool) -> None:
        with self._host.table.reading(receiver.stream):
            page = await self._page(call, receiver, END if is_latest else 0)
            if page is not None:
                self._start(call, receiver, page, is_latest=is_latest)

    def _start(self, call: ReceiveCall, receiver: Receiver, page: Page, *, is_latest: bool) -> None:
        is_of_store_only = call.vocabulary.is_of_store_only
        if not page.last and not is_of_store_only:  # never was: what is in memory counts
            stream = self._host.table.find(receiver.stream)
            ring = None if stream is None else stream.ring
            first, end = (1, 0) if ring is None else (ring.first, ring.end)
            receiver.after = end if is_latest else first - 1
            self._host.receive(receiver)
        elif page.messages:
            self._give(call, receiver, page, after=page.messages[0].position - 1)
        else:
            call.is_stored = True
            receiver.after = page.last
            self._host.tail(receiver)

    async def _read(self, call: ReceiveCall, receiver: Receiver) -> None:
        assert receiver.after is not None
        after = receiver.after
        with self._host.table.reading(receiver.stream):
            page = await self._page(call, receiver, after)
            if page is not None:
                self._go_on(call, receiver, page, after)

    def _go_on(self, call: ReceiveCall, receiver: Receiver, page: Page, after: int) -> None:
        next_position = page.messages[0].position if page.messages else page.last + 1
        if page.last < after:
            call.gone(0, EARLIEST, AHEAD)
        elif next_position > after + 1 and not call.vocabulary.is_of_store_only:
            oldest = Token(STORED, 0, next_position - 1)
            call.gone(next_position - after - 1, self._tokens.encode(receiver.stream, oldest))
        elif page.messages:
            self._give(call, receiver, page, after=after)
        else:
            receiver.after = page.last
            self._host.tail(receiver)

    def _give(self, call: ReceiveCall, receiver: Receiver, page: Page, *, after: int) -> None:
        given = deliver_of(receiver, page, after=after)
        if call.delivered(given):
            self._host.note_read(given)

    async def _page(self, call: ReceiveCall, receiver: Receiver, after: int) -> Page | None:
        """Return what the store has; None if nobody wants it any more.

        The receiver is answered in its time; the read goes on, for not every driver can be stopped.
        """
        wait_ms = max(READ_MS_MIN, receiver.deadline_ms - self._host.now_ms())
        late = asyncio.get_running_loop().call_later(wait_ms / 1_000, _too_late, call)
        try:
            page = await self._node.persister.read(
                receiver.stream, after=after, limit=receiver.limit
            )
        finally:
            late.cancel()
        if call.is_over:
            return None
        if self._node.ownership.owner(receiver.stream) is not None:  # it moved meanwhile
            call.moved()
            return None
        return page


def _too_late(call: ReceiveCall) -> None:
    call.answer(problem_of(StoreUnavailable("the store did not answer in time: ask again")))


async def _answered(call: ReceiveCall, work: Coroutine[None, None, None]) -> None:
    """Do something for a request that nobody waits for in a task: what fails is its answer."""
    try:
        await work
    except Exception as error:
        call.answer(problem_of(error, _REQUEST))


def deliver_of(receiver: Receiver, page: Page, *, after: int) -> Deliver:
    """Return what was read, as if it had been in memory."""
    positions = [message.position for message in page.messages]
    items = [
        Item(message.body, message.message_id, message.stored_ms, 0, message.position)
        for message in page.messages
    ]
    missed = positions[-1] - after - len(positions)
    return Deliver(receiver, positions, items, missed)
