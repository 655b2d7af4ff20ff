"""The channels of a link: many requests and answers at once, none in another's way. Pure.

    open(method, body, caller) -> Channel      ask; the caller hears the answer, piece by piece
    on_request(channel, method, body, ...)     somebody asks; answer through the channel
    receive(frame)                             a frame came
    output() -> list of bytes                  what to write now
    lose(error)                                the connection is gone: everybody hears of it

Bodies are cut into pieces that take turns, so a long one does not keep short ones waiting, and each
direction of a channel may only send what the other side has given credit for. A request that waits
costs a `Channel` and an entry in a dictionary on either side, and nothing ticks.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from waterclock.cluster.peer_link.frames import (
    ANSWER_HEAD,
    NUMBER,
    REQUEST_HEAD,
    STATUS,
    WHOLE_ANSWER,
    WHOLE_REQUEST,
    BadFrame,
    Frame,
    Kind,
    decode_credit,
    decode_reason,
    encode,
    encode_reason,
)
from waterclock.model.errors import Unavailable

WINDOW_BYTES: Final = 64 << 10
"""What may be sent in each direction of a channel before the other side says more."""
PIECE_BYTES: Final = 32 << 10
OUTPUT_BYTES: Final = 256 << 10
"""What is put together for one write; the rest waits, and takes turns."""
CHANNELS_MAX: Final = 200_000
"""Requests of one side that are open at once."""


class Cancelled(Unavailable):
    """The other side gave a request up, and said why."""


class Listener(Protocol):
    """Hears what comes over a channel: who asked, or who answers."""

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        """The answer begins. Only who asked hears this."""
        ...

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """A body goes on: the answer's, for who asked; the request's, for who answers."""
        ...

    def failed(self, error: Exception) -> None:
        """The channel is over and nothing more comes: it was cancelled, or the link is gone."""
        ...

    def drained(self) -> None:
        """All that had to wait for credit, or for its turn, has been said."""
        ...


class Channel:
    """One request and its answer, as one side sees it."""

    __slots__ = (
        "_channels",
        "_credit",
        "_granted",
        "_has_received_last",
        "_is_answered",
        "_is_ours",
        "_unsent",
        "is_ready",
        "listener",
        "number",
    )

    def __init__(
        self, channels: "Channels", number: int, listener: Listener | None, *, is_ours: bool
    ) -> None:
        self.number = number
        self.listener = listener
        self._channels = channels
        self._is_ours = is_ours
        self._is_answered = False
        self._has_received_last = False
        self._credit = self._granted = WINDOW_BYTES
        # Not a deque, which takes 600 bytes: thousands may wait for a moment, most with one piece.
        self._unsent: list[tuple[Kind, bytes, bytes | memoryview, bool]] | None = None
        self.is_ready = False
        """It is among those that take turns."""

    def __repr__(self) -> str:
        return f"<Channel {self.number}>"

    @property
    def is_open(self) -> bool:
        """Whether something can still be said or heard."""
        return self._channels.find(self.number) is self

    def is_beside(self, other: "Channel") -> bool:
        """Whether both are over the same connection: what comes over them comes in order."""
        return self._channels is other._channels

    def answer(self, status: int, body: bytes = b"", *, is_last: bool = True) -> None:
        """Begin the answer; `is_last` ends the channel. Nothing happens if it has ended."""
        assert not self._is_ours
        assert not self._is_answered
        self._is_answered = True
        channels, size = self._channels, len(body)
        if is_last and self._is_at_once(size):
            channels.control(
                WHOLE_ANSWER.pack(size + 3, Kind.ANSWER, self.number, 1, status) + body
            )
            self._end()
        else:
            self._say(Kind.ANSWER, STATUS.pack(status), body, is_last=is_last)

    def send(self, body: bytes, *, is_last: bool = False) -> None:
        """Say more of the request or of the answer."""
        self._say(Kind.PIECE, b"", body, is_last=is_last)

    def grant(self, count: int) -> None:
        """Let the other side send so many bytes more: those that came have been dealt with."""
        if count and self.is_open:
            self._granted += count
            self._channels.control(encode(Kind.CREDIT, self.number, NUMBER.pack(count)))

    def cancel(self, reason: str = "") -> None:
        """End the channel; its listener hears nothing of it."""
        if self.is_open:
            self._channels.control(encode_reason(Kind.CANCEL, self.number, reason))
            self._end()

    @property
    def is_blocked(self) -> bool:
        """Something waits for credit, or for its turn; `drained` tells when it does not."""
        return self._unsent is not None

    def _say(self, kind: Kind, head: bytes, body: bytes, *, is_last: bool) -> None:
        if not self.is_open:
            return
        channels = self._channels
        if self._is_at_once(len(body)):
            self._credit -= len(body)
            self._emit(kind, head, body, is_last=is_last)
            return
        if self._unsent is None:
            self._unsent = []
            channels.ready(self)
        piece = body if len(body) <= PIECE_BYTES else memoryview(body)
        self._unsent.append((kind, head, piece, is_last))

    def _is_at_once(self, size: int) -> bool:
        """Whether so many bytes go now, as one piece, before anything else."""
        is_short = size <= self._credit and size <= PIECE_BYTES
        return is_short and self._unsent is None and self.is_open and not self._channels.is_full

    def _emit(self, kind: Kind, head: bytes, body: bytes, *, is_last: bool) -> None:
        self._channels.control(encode(kind, self.number, b"%c%b%b" % (is_last, head, body)))
        if is_last and not self._is_ours:
            self._end()

    def step(self) -> bool:
        """Say one piece of what is unsent; return whether another can follow now."""
        unsent = self._unsent
        if not unsent or not self.is_open:
            return False
        kind, head, body, is_last = unsent[0]
        size = min(len(body), self._credit, PIECE_BYTES)
        if not size and body:
            return False
        rest = body[size:]
        if rest:
            unsent[0] = (Kind.PIECE, b"", rest, is_last)
        else:
            del unsent[0]
        if not unsent:
            self._unsent = None
        self._credit -= size
        self._emit(kind, head, bytes(body[:size]), is_last=is_last and not rest)
        if not unsent and self.is_open and self.listener is not None:
            self.listener.drained()
        return bool(unsent)

    # What comes

    def hear_answer(self, status: int, body: bytes, *, is_last: bool) -> None:
        """The answer begins."""
        if not self._is_ours or self._is_answered:
            raise BadFrame(f"a second ANSWER on channel {self.number}")
        self._is_answered = True
        self._use(len(body))
        listener = self.listener
        if is_last:
            self._end()
        if listener is not None:
            listener.answered(status, body, is_last=is_last)

    def hear_piece(self, body: bytes, *, is_last: bool) -> None:
        """A body goes on."""
        if self._has_received_last or (self._is_ours and not self._is_answered):
            raise BadFrame(f"a PIECE of nothing on channel {self.number}")
        self._use(len(body))
        self._has_received_last = is_last
        listener = self.listener
        if is_last and self._is_ours:
            self._end()
        if listener is not None:
            listener.piece(body, is_last=is_last)

    def hear_request(self, size: int, *, is_last: bool) -> None:
        """The request begins."""
        self._use(size)
        self._has_received_last = is_last

    def hear_credit(self, count: int) -> None:
        """More may be sent."""
        self._credit += count
        if self._unsent:
            self._channels.ready(self)

    def fail(self, error: Exception) -> None:
        """End the channel: its listener hears why."""
        listener = self.listener
        self._end()
        if listener is not None:
            listener.failed(error)

    def _use(self, size: int) -> None:
        self._granted -= size
        if self._granted < 0:
            raise BadFrame(f"{-self._granted} bytes beyond the credit of channel {self.number}")

    def _end(self) -> None:
        self._unsent = None
        self.listener = None  # the two hold each other
        self._channels.ended(self)


class Channels:
    """All channels of one link.

    `on_request(channel, method, body, is_last)` is called for each request of the other side, and
    may set the channel's `listener` to hear more; `on_output` once there is something to write.
    """

    def __init__(
        self,
        *,
        is_dialler: bool,
        on_request: Callable[[Channel, int, bytes, bool], None],
        on_output: Callable[[], None],
    ) -> None:
        self._on_request = on_request
        self._on_output = on_output
        self._ours, self._theirs = (1, 0) if is_dialler else (0, 1)
        self._next = 1 if is_dialler else 2
        self._last_heard = 0
        self._open: dict[int, Channel] = {}
        self._opened_by_them = 0
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._ready: deque[Channel] = deque()

    def __repr__(self) -> str:
        return f"<Channels {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """As much waits to be written as one write should have: take turns from here on."""
        return self._output_bytes >= OUTPUT_BYTES or bool(self._ready)

    def find(self, number: int) -> Channel | None:
        """Return a channel that is open."""
        return self._open.get(number)

    def open(self, method: int, body: bytes, caller: Listener, *, is_last: bool = True) -> Channel:
        """Ask something of the other side."""
        number, size = self._next, len(body)
        channel = self._open[number] = Channel(self, number, caller, is_ours=True)
        self._next += 2
        if is_last and channel._is_at_once(size):
            channel._credit -= size
            self.control(WHOLE_REQUEST.pack(size + 2, Kind.REQUEST, number, 1, method) + body)
            return channel
        channel._say(Kind.REQUEST, bytes((method,)), body, is_last=is_last)
        return channel

    def output(self) -> list[bytes]:
        """Return what to write now; call again when it is written, as long as there is some."""
        ready = self._ready
        while ready and self._output_bytes < OUTPUT_BYTES:
            channel = ready.popleft()
            channel.is_ready = channel.step()
            if channel.is_ready:
                ready.append(channel)
        output, self._output, self._output_bytes = self._output, [], 0
        return output

    def lose(self, error: Exception) -> None:
        """Tell every listener that nothing more comes."""
        for channel in list(self._open.values()):
            channel.fail(error)

    # Frames

    def receive(self, frame: Frame) -> None:
        """Take a frame of a channel. Raises BadFrame: close the link."""
        kind, number, payload = frame
        if kind == Kind.REQUEST:
            self._requested(number, payload)
            return
        is_ours = number & 1 == self._ours
        if number >= self._next if is_ours else number > self._last_heard:
            raise BadFrame(f"channel {number} was never opened")
        channel = self._open.get(number)
        if channel is None:
            return  # it has ended, and this was on its way
        if kind == Kind.ANSWER:
            if len(payload) < ANSWER_HEAD.size:
                raise BadFrame("ANSWER is too short")
            last, status = ANSWER_HEAD.unpack_from(payload)
            channel.hear_answer(status, payload[ANSWER_HEAD.size :], is_last=_flag(last))
        elif kind == Kind.PIECE:
            if not payload:
                raise BadFrame("PIECE is too short")
            channel.hear_piece(payload[1:], is_last=_flag(payload[0]))
        elif kind == Kind.CREDIT:
            channel.hear_credit(decode_credit(payload))
        else:
            channel.fail(Cancelled(decode_reason(payload) or "the other node gave up"))

    def _requested(self, number: int, payload: bytes) -> None:
        if number & 1 != self._theirs or number <= self._last_heard:
            raise BadFrame(f"channel {number} cannot be opened")
        if len(payload) < REQUEST_HEAD.size:
            raise BadFrame("REQUEST is too short")
        last, method = REQUEST_HEAD.unpack_from(payload)
        is_last = _flag(last)
        self._last_heard = number
        if self._opened_by_them >= CHANNELS_MAX:
            reason = f"{CHANNELS_MAX} requests are open already"
            self.control(encode_reason(Kind.CANCEL, number, reason))
            return
        channel = self._open[number] = Channel(self, number, None, is_ours=False)
        self._opened_by_them += 1
        body = payload[REQUEST_HEAD.size :]
        channel.hear_request(len(body), is_last=is_last)
        self._on_request(channel, method, body, is_last)

    # What channels do

    def control(self, frame: bytes) -> None:
        """Write a frame before whatever waits for its turn."""
        if not self._output:
            self._on_output()
        self._output.append(frame)
        self._output_bytes += len(frame)

    def ready(self, channel: Channel) -> None:
        """Let a channel have its turns."""
        if not self._output and not self._ready:
            self._on_output()
        if not channel.is_ready:
            channel.is_ready = True
            self._ready.append(channel)

    def ended(self, channel: Channel) -> None:
        """Forget a channel."""
        if self._open.pop(channel.number, None) is not None:
            self._opened_by_them -= channel.number & 1 == self._theirs


def _flag(value: int) -> bool:
    if value > 1:
        raise BadFrame(f"a flag of {value}")
    return bool(value)
