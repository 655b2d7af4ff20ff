"""Streams on their way to other nodes, and from them: the core of `settling` over the peer link.

When the ring changes, all streams in memory are looked at, a slice at a time. Whoever waits at one
that belongs elsewhere is told to ask there; the stream follows in a chunk. Requests for a stream
that has not come yet are held off by the `gate` of the ownership, which is there only meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol, assert_never

from waterclock.cluster.handed_over import (
    DONE,
    HANDOVER,
    PUT_OFF,
    BadHandover,
    Chunk,
    Greeting,
    Question,
    decode,
    decode_number,
    encode_number,
)
from waterclock.cluster.hash_ring import HashRing
from waterclock.cluster.peer_link.channels import Cancelled, Channel, Listener
from waterclock.cluster.settling import (
    Ask,
    Confirm,
    Effect,
    Greet,
    Look,
    Lose,
    Resend,
    Send,
    Settling,
    TakeBack,
)
from waterclock.model.errors import CapacityReached, Unreachable
from waterclock.node.streams.host import StreamHost
from waterclock.server.cluster.answering import Arriving
from waterclock.server.cluster.ownership import RingOwnership
from waterclock.streams.exported import BadExport, Exported

CHUNK_STREAMS_MAX: Final = 500
CHUNK_BYTES: Final = 1 << 20
"""A chunk ends with the stream that brings it to this."""
LOOK_STREAMS: Final = 1_000
"""So many are looked at before others have their turn."""
TICK_S: Final = 0.05
HEAD_BYTES_MAX: Final = 64 << 20
"""Of a chunk, beside the messages: names, and what is known of consumers."""

log = logging.getLogger(__name__)


class Asks(Protocol):
    """Carries a request to a node."""

    def ask(self, node_id: str, method: int, body: bytes, caller: Listener) -> Channel:
        """Ask; raises Unreachable if there is no way to that node now."""
        ...


class Handover:
    """Moves the streams of a node. `run` must be running."""

    def __init__(
        self,
        asks: Asks,
        ownership: RingOwnership,
        streams: StreamHost,
        *,
        run_id: int,
        gone: Callable[[], Collection[str]],
    ) -> None:
        """`gone` returns linked nodes that are known not to answer any more."""
        self.sent = self.taken = 0
        """Streams that went to other nodes, and came from them."""
        self.sent_bytes = self.taken_bytes = 0
        self.refused = 0
        """Streams that were lost because there was no room for them."""
        self._asks = asks
        self._ownership = ownership
        self._streams = streams
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._core = Settling(ownership.node_id, run=run_id)
        self._bodies: dict[int, bytes] = {}
        """Chunks under way, by number."""
        self._questions: dict[str, Channel] = {}
        """What we ask, and whom."""
        self._askers: dict[str, Channel] = {}
        self._is_looking = False
        self._is_quiet = False
        """Nothing is to be done until somebody sets `_wake`."""
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()
        ownership.on_change.append(self._ring_changed)
        self._act(self._core.ring_changed(ownership.ring, self._now_ms()))

    def __repr__(self) -> str:
        return f"<Handover {self._core!r}>"

    @property
    def lost(self) -> int:
        """Streams that went to a node that was gone before it said that it has them."""
        return self._core.lost

    @property
    def timeouts(self) -> int:
        """Nodes that did not say in time that they have sent all."""
        return self._core.timeouts

    @property
    def is_settled(self) -> bool:
        """No stream is on its way, as far as this node knows."""
        return self._core.is_settled and self._core.is_sent

    async def run(self) -> None:
        """Look at streams when the ring has changed, and try again what failed."""
        while True:
            if self._is_looking:
                await self._look()
            else:
                self._is_quiet = self.is_settled
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self._is_quiet else TICK_S):
                        await self._wake.wait()
            self._wake.clear()
            self._act(self._core.tick(self._now_ms()))

    async def leave(self, is_anyone_left: Callable[[], bool]) -> None:
        """Return when all streams are with others, by a ring without this node, and all others
        know that ring; or when nobody is left who could take them. The caller says how long that
        may take."""
        while not self._core.may_leave and is_anyone_left():
            self._progress.clear()
            await self._progress.wait()

    def stray(self, name: str) -> None:
        """Send a stream to its owner: something was put into it after it had moved."""
        if self._core.found(name):
            self._streams.move_waiters(name)
            self._act(self._core.tick(self._now_ms()))

    # What is told

    def linked(self, node_id: str) -> None:
        """A node can be asked."""
        self._act(self._core.link_up(node_id, self._now_ms()))

    def unlinked(self, node_id: str) -> None:
        """A node can be asked no more."""
        self._act(self._core.link_down(node_id))

    def requested(self, node_id: str, channel: Channel, body: bytes, *, is_last: bool) -> None:
        """Take a request of another node; what is missing of it comes later."""
        if is_last:
            self._heard(node_id, channel, body)
        else:
            bytes_max = self._streams.config.bytes_max + HEAD_BYTES_MAX
            Arriving(channel, body, bytes_max, lambda *whole: self._heard(node_id, *whole))

    def _ring_changed(self, before: HashRing, ring: HashRing) -> None:
        self._act(self._core.ring_changed(ring, self._now_ms(), gone=self._gone()))

    def _heard(self, node_id: str, channel: Channel, data: bytes) -> None:
        try:
            request = decode(data)
            match request:
                case Greeting():
                    channel.answer(DONE, encode_number(self._core.run))
                case Question(version):
                    self._asked(node_id, channel, version)
                case Chunk():
                    self._arrived(node_id, channel, request)
                case _:
                    assert_never(request)
        except (BadHandover, BadExport) as error:
            log.warning("handover_refused node=%s: %s", node_id, error)
            channel.cancel(str(error))

    def _asked(self, node_id: str, channel: Channel, version: int) -> None:
        self._askers[node_id] = channel
        channel.listener = _Answer(_no_answer, lambda _: self._unasked(node_id, channel))
        self._act(self._core.asked(node_id, version))

    def _unasked(self, node_id: str, channel: Channel) -> None:
        if self._askers.get(node_id) is channel:
            del self._askers[node_id]
            self._core.unasked(node_id)

    def _arrived(self, node_id: str, channel: Channel, chunk: Chunk) -> None:
        streams = [Exported.decode(data) for data in chunk.streams]
        is_new = self._core.arrives(node_id, chunk.number, chunk.version, self._now_ms())
        if is_new is False:
            channel.answer(PUT_OFF)
            return
        refused = self._take_in(streams) if is_new else 0
        if is_new:
            self.taken += len(streams) - refused
            self.taken_bytes += sum(map(len, chunk.streams))
        channel.answer(DONE, encode_number(refused))

    def _take_in(self, streams: list[Exported]) -> int:
        """Take streams into memory; return for how many there was no room."""
        refused = 0
        for stream in streams:
            try:
                self._streams.take_in(stream)
            except CapacityReached as error:
                refused += 1
                log.warning("stream_lost name=%r: %s", stream.name, error)
        self.refused += refused
        return refused

    # What is done

    def _act(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._perform(effect)
        self._ownership.gate = None if self._core.is_settled else self._may_serve
        self._progress.set()
        if self._is_looking or (self._is_quiet and not self.is_settled):
            self._is_quiet = False
            self._wake.set()

    def _may_serve(self, name: str) -> bool:
        is_in_memory = self._streams.table.find(name) is not None
        return self._core.may_serve(name, is_in_memory=is_in_memory)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Look():
                self._is_looking = True
            case Greet(node):
                self._greet(node)
            case Ask(node, version):
                self._ask(node, version)
            case Confirm(node):
                self._askers.pop(node).answer(DONE)
            case Send(node):
                self._send(node)
            case Resend(node, number):
                self._post(node, number, is_first=False)
            case TakeBack(number):
                chunk = decode(self._bodies.pop(number))
                assert isinstance(chunk, Chunk)
                self._take_in([Exported.decode(data) for data in chunk.streams])
            case Lose(number):
                del self._bodies[number]
                log.warning("chunk_lost number=%d: its receiver is gone", number)
            case _:
                assert_never(effect)

    async def _look(self) -> None:
        """Look at all streams; the next time again, if the ring changes meanwhile."""
        core, ring = self._core, self._core.ring
        names = list(self._streams.table.names())
        for start in range(0, len(names), LOOK_STREAMS):
            for name in names[start : start + LOOK_STREAMS]:
                if core.found(name):
                    self._streams.move_waiters(name)
            self._act(core.tick(self._now_ms()))
            await asyncio.sleep(0)
            if core.ring is not ring:
                return
        self._is_looking = False
        self._act(core.looked(self._now_ms()))

    def _greet(self, node: str) -> None:
        def answered(status: int, body: bytes) -> None:
            try:
                run = decode_number(body)
            except BadHandover as error:
                failed(error)
            else:
                self._act(self._core.greeted(node, run, self._now_ms()))

        def failed(_: Exception) -> None:
            self._core.not_greeted(node, self._now_ms())

        self._request(node, Greeting().encode(), answered, failed)

    def _ask(self, node: str, version: int) -> None:
        def answered(status: int, body: bytes) -> None:
            self._core.confirmed(node, version)
            self._act([])

        def failed(_: Exception) -> None:
            self._core.not_confirmed(node, self._now_ms())

        if (before := self._questions.pop(node, None)) is not None:
            before.cancel("there is another ring")
        channel = self._request(node, Question(version).encode(), answered, failed)
        if channel is not None:
            self._questions[node] = channel

    def _send(self, node: str) -> None:
        core = self._core
        names: list[str] = []
        streams: list[bytes] = []
        room = CHUNK_BYTES
        while len(names) < CHUNK_STREAMS_MAX and room > 0:
            if (name := core.next_name(node)) is None:
                break
            if (exported := self._streams.export(name)) is not None:
                names.append(name)
                streams.append(exported.encode())
                room -= len(streams[-1])
        if not names:
            self._act(core.emptied())
            return
        assert core.ring is not None
        number = core.sent(node, names)
        self._bodies[number] = Chunk(core.ring.version, number, tuple(streams)).encode()
        self._post(node, number, is_first=True)

    def _post(self, node: str, number: int, *, is_first: bool) -> None:
        def answered(status: int, body: bytes) -> None:
            if status == PUT_OFF:
                self._act(self._core.put_off(node, number, self._now_ms()))
                return
            self.sent += len(self._core.names_in(node))
            self.sent_bytes += len(self._bodies.pop(number, b""))
            self._act(self._core.taken(node, number, self._now_ms()))

        def failed(error: Exception) -> None:
            # It says itself that it did not take it; or nobody knows.
            is_refused = isinstance(error, Cancelled)
            note = self._core.put_off if is_refused else self._core.broke
            self._act(note(node, number, self._now_ms()))

        def unsent(error: Exception) -> None:
            note = self._core.put_off if is_first else self._core.broke
            self._act(note(node, number, self._now_ms()))

        self._request(node, self._bodies[number], answered, failed, unsent)

    def _request(
        self,
        node: str,
        body: bytes,
        answered: Callable[[int, bytes], None],
        failed: Callable[[Exception], None],
        unsent: Callable[[Exception], None] | None = None,
    ) -> Channel | None:
        try:
            return self._asks.ask(node, HANDOVER, body, _Answer(answered, failed))
        except Unreachable as error:
            (unsent or failed)(error)
            return None

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)


class _Answer:
    """Hears one answer, in one frame, or that none comes."""

    __slots__ = ("_answered", "_failed")

    def __init__(
        self, answered: Callable[[int, bytes], None], failed: Callable[[Exception], None]
    ) -> None:
        self._answered = answered
        self._failed = failed

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        self._answered(status, body)

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """Nobody says more than fits into one frame."""

    def failed(self, error: Exception) -> None:
        self._failed(error)

    def drained(self) -> None:
        """Nothing waits for that."""


def _no_answer(status: int, body: bytes) -> None:
    raise AssertionError("we were asked")
