"""The connections between a leader and its workers, dialled by either side: frames in, frames out.

A worker that says HELLO takes batches. One that says nothing for a while is of the simple kind,
which takes one message a frame (commands 0 and 1) and as many at once as the leader is configured
for. What is no frame closes this connection, with a reason, and no other. Where there is a secret,
nothing is read but the handshake until the other side has proved itself.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeAlias

from waterclock.dispatch.core.batches import HandOut
from waterclock.dispatch.credentials import AskedToken, ShownToken
from waterclock.dispatch.decoder import Decoder
from waterclock.dispatch.frames import (
    LEADER_READS,
    STRANGER_READS,
    WORKER_READS,
    Auth,
    BadFrame,
    Close,
    Frame,
    Token,
    Welcome,
    encode_close,
    encode_process_batch,
    encode_process_message,
)
from waterclock.dispatch.handshake import Handshake
from waterclock.model.errors import NotAuthenticated
from waterclock.runtime.link import Link

AnyHandshake: TypeAlias = Handshake | ShownToken | AskedToken
"""How an end of a connection learns who is at the other, and says who it is."""


def printable(text: str) -> str:
    """Return what another program said as it may stand in a log: on one line, whatever is in it."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class FrameLink(Link):
    """One end of a connection, which reads the commands that are meant for it."""

    def __init__(
        self,
        commands: Iterable[int],
        handshake: AnyHandshake | None,
        *,
        on_made: Callable[[Self], None],
        on_frames: Callable[[Self, list[Frame]], None],
        on_lost: Callable[[Self], None],
        on_bad: Callable[[Self, str], None],
    ) -> None:
        super().__init__()
        self._commands = commands
        self._handshake = handshake
        self._decoder = Decoder(commands if self.is_admitted else STRANGER_READS)
        self._on_made: Callable[[Any], None] = on_made
        self._on_frames: Callable[[Any, list[Frame]], None] = on_frames
        self._on_lost: Callable[[Any], None] = on_lost
        self._on_bad: Callable[[Any, str], None] = on_bad

    @property
    def is_admitted(self) -> bool:
        """Whether the other side has proved itself, or need not."""
        return self._handshake is None or self._handshake.is_done

    def admitted(self) -> None:
        """Begin: the other side is known now, or need not be."""

    def close(self, reason: str = "", *, epoch: int = 0) -> None:
        """Close the connection, after a last frame that says why."""
        if reason:
            self.send(encode_close(epoch=epoch, reason=reason))
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the owner."""
        super().connection_made(transport)
        self._on_made(self)
        if self._handshake is not None:
            self.send(self._handshake.begin())
        if self.is_admitted:
            self.admitted()

    def data_received(self, data: bytes) -> None:
        """Hand on whole frames."""
        self.heard_at = self._loop.time()
        reason = None
        try:
            frames = self._decoder.feed(data)
        except BadFrame as bad:
            frames, reason = list(bad.frames), bad.reason
        try:
            frames = [frame for frame in frames if not self._is_step(frame)]
        except NotAuthenticated as error:
            self._on_bad(self, str(error))
            return
        if frames:
            self._on_frames(self, frames)
        if reason is not None:
            self._on_bad(self, reason)

    def _is_step(self, frame: Frame) -> bool:
        """Take a step of the handshake; a frame that is none may pass once it is done."""
        if not isinstance(frame, Auth | Token):
            if not self.is_admitted and not isinstance(frame, Close):
                raise NotAuthenticated(
                    "a credential is asked for here: show it first"
                    if isinstance(self._handshake, AskedToken)
                    else "there is a secret here: prove first that you know it"
                )
            return False
        if self._handshake is None:
            raise NotAuthenticated("one side has a secret and the other has none")
        was_admitted = self.is_admitted
        answer = self._handshake.heard(frame)
        if answer:
            self.send(answer)
        if self.is_admitted and not was_admitted:
            self._decoder.admit(self._commands)
            self.admitted()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        self._on_lost(self)


class LeaderLink(FrameLink):
    """A worker's connection to a leader; the worker speaks first."""

    def __init__(
        self,
        handshake: AnyHandshake | None,
        *,
        on_admitted: Callable[[Self], None],
        on_made: Callable[[Self], None],
        on_frames: Callable[[Self, list[Frame]], None],
        on_lost: Callable[[Self], None],
        on_bad: Callable[[Self, str], None],
    ) -> None:
        super().__init__(
            WORKER_READS, handshake,
            on_made=on_made, on_frames=on_frames, on_lost=on_lost, on_bad=on_bad,
        )  # fmt: skip
        self._on_admitted: Callable[[Any], None] = on_admitted
        self.welcome: Welcome | None = None
        self.claim: Welcome | None = None
        """A welcome under an epoch that Redis has not confirmed yet."""
        self.doubts = 0
        """How often Redis said otherwise."""
        self.held: list[Frame] = []
        """What came behind the claim; nothing more is read meanwhile."""
        self.is_stale = False
        """Another leader with a higher epoch has welcomed us: nothing counts that comes here."""
        self.contexts: dict[bytes, bytes] = {}
        """Which traces messages in flight belong to, those that say so."""
        self.credit = 0
        """What we last said it may be."""
        self.extended_at = 0.0
        """When we last asked for more time."""
        self.retires_at: float | None = None
        """When to hang up, once all is answered: its leader has another connection to us."""

    def __repr__(self) -> str:
        return f"<LeaderLink epoch {self.epoch or '?'}{', stale' if self.is_stale else ''}>"

    @property
    def epoch(self) -> int:
        """The leader's, 0 before its welcome."""
        return self.welcome.epoch if self.welcome else 0

    def admitted(self) -> None:
        """Let the worker say hello."""
        self._on_admitted(self)

    def hold(self, claim: Welcome, behind: list[Frame]) -> None:
        """Read no further until the claim is confirmed."""
        self.claim, self.held = claim, behind
        if self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> list[Frame]:
        """Read on; return what was held, to be handled first."""
        self.claim, held, self.held = None, self.held, []
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()
        return held


class WorkerLink(FrameLink):
    """A leader's connection to a worker. `key` is its number in the plan."""

    def __init__(
        self,
        key: int,
        handshake: AnyHandshake | None = None,
        *,
        may_be_simple: bool = False,
        on_made: Callable[[Self], None],
        on_frames: Callable[[Self, list[Frame]], None],
        on_lost: Callable[[Self], None],
        on_bad: Callable[[Self, str], None],
    ) -> None:
        super().__init__(
            LEADER_READS, handshake,
            on_made=on_made, on_frames=on_frames, on_lost=on_lost, on_bad=on_bad,
        )  # fmt: skip
        self.key = key
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.name = ""
        self.is_joined = False
        self.may_be_simple = may_be_simple
        self.is_simple = False
        """It said no hello: one message a frame, no epochs, no heartbeats."""
        self.made_at = self.heard_at

    def __repr__(self) -> str:
        return f"<WorkerLink {self.key} {self.name or 'nameless'}>"

    def hand(self, out: HandOut, epoch: int) -> None:
        """Send messages in the way this worker understands."""
        if self.is_simple:
            frames = map(encode_process_message, out.uuids, out.bodies)
            self.send(b"".join(frames))
            return
        self.send(
            encode_process_batch(
                epoch=epoch,
                deliveries=min(out.deliveries, 65_535),
                uuids=out.uuids,
                births_ms=out.births_ms,
                bodies=out.bodies,
            )
        )

    def recheck(self) -> None:
        """Raise NotAuthenticated if the worker would not be let in any more."""
        if isinstance(self._handshake, AskedToken):
            self._handshake.recheck()

    def close(self, reason: str = "", *, epoch: int = 0) -> None:
        """Close the connection, after a last frame that says why to a worker that reads it."""
        super().close("" if self.is_simple else reason, epoch=epoch)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the leader, and the task that waits for the end."""
        if not self.lost.done():
            self.lost.set_result(None)
        super().connection_lost(exc)
