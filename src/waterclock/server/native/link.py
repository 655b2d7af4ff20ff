"""One connection of a client: it logs in, then publishes and calls, many at once.

    publishes   without a task, in the order they came (`publishing.py`)
    calls       the methods of the gRPC API, each on a channel (`calling.py`)

What comes is answered in one write for each turn of the loop. A client that does not read its
answers is not read either, and is cut off if that lasts.
"""

import asyncio
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from waterclock.cluster.peer_link.channels import Channel, Channels
from waterclock.cluster.peer_link.client_frames import CALL, CALLS, OF_CLIENTS, PUBLISHES, Login
from waterclock.cluster.peer_link.frames import (
    BadFrame,
    Decoder,
    Frame,
    Kind,
    decode_reason,
    encode,
    encode_reason,
)
from waterclock.model.errors import Unreachable, WaterclockError
from waterclock.runtime.link import Link
from waterclock.server.access import Asked, Permit
from waterclock.server.http.identity import Head, Identity
from waterclock.server.native.calling import ClientCall
from waterclock.server.native.publishing import Publishing

if TYPE_CHECKING:
    from waterclock.security.principals import Principal
    from waterclock.server.native.server import NativeServer

LOGIN_S: Final = 5.0
SILENCE_MS: Final = 90_000
"""A client that is not heard of for so long is gone; one may ask to be taken for gone sooner."""
HEARTBEAT_MS_MAX: Final = 20_000
HEARTBEAT_MS_MIN: Final = 200
BLOCKED_S: Final = 30.0
"""How long a client may read nothing of what it is sent."""
CALLS_MAX: Final = 1_000
"""Calls of one connection at once, as over gRPC."""
ENDING_S: Final = 1.0
STOPS: Final = "the node stops"


class ClientLink(Link):
    """One connection. Made by `NativeServer.take`."""

    def __init__(self, server: "NativeServer", host: str, common_name: str | None) -> None:
        super().__init__()
        self.server = server
        self.host = host
        self.common_name = common_name
        self.authorization = ""
        self.principal: Principal | None = None
        """Who is there, on a secure node."""
        self.is_stopping = False
        self.publishing = Publishing(self)
        self.open_calls = 0
        self._channels = Channels(
            is_dialler=False, on_request=self._requested, on_output=self._write_soon
        )
        self._decoder = Decoder(OF_CLIENTS)
        self._identity: Identity | None = None
        self._held: AbstractContextManager[None] | None = None
        self._output: list[bytes] = []
        self._is_writing_soon = False
        self._blocked_at: float | None = None
        self._heartbeat_s = LOGIN_S
        self._silence_s = LOGIN_S
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        who = "a stranger" if not self.is_known else self.host
        return f"<ClientLink to {who}, {self.publishing!r}>"

    @property
    def is_known(self) -> bool:
        """The client has logged in."""
        return self._decoder.is_admitted

    @property
    def is_busy(self) -> bool:
        """Something is being worked on, or sent."""
        return bool(self.open_calls or self.publishing or self._output or self.unsent_bytes)

    @property
    def is_blocked(self) -> bool:
        """The client does not read."""
        return self._blocked_at is not None

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the login."""
        super().connection_made(transport)
        self.server.links.add(self)
        self._timer = self._loop.call_later(LOGIN_S, self._beat)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything; calls are cancelled, what was appended stays."""
        self.server.links.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.publishing.close()
        self._channels.lose(Unreachable("the client has gone"))
        if self._held is not None:
            self._held.__exit__(None, None, None)
        if self._identity is not None:
            self._identity.close()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self.heard_at = self._loop.time()
        publishing = self.publishing
        try:
            for kind, number, payload in self._decoder.feed(data):
                if kind == Kind.PUBLISH:
                    publishing.requested(number, payload)
                elif number:
                    self._hear_of_channel(Frame(kind, number, payload))
                else:
                    self._hear(kind, payload)
        except BadFrame as error:
            self.close(error.reason)

    def eof_received(self) -> bool:
        """A client that half-closes is gone."""
        return False

    def pause_writing(self) -> None:
        """Read nothing more until the client reads."""
        self._blocked_at = self._loop.time()
        self.read_or_not()

    def resume_writing(self) -> None:
        """Go on."""
        self._blocked_at = None
        self._write()
        self.read_or_not()

    def read_or_not(self) -> None:
        """Read as long as there is room for what comes, and what is answered is taken."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.is_blocked or self.publishing.is_full:
            transport.pause_reading()
        elif not transport.is_reading():
            self.heard_at = self._loop.time()
            transport.resume_reading()

    def close(self, why: str) -> None:
        """Say why, and end."""
        if self.is_open:
            self.send(encode_reason(Kind.CLOSE, 0, why))
            assert self._transport is not None
            self._transport.close()

    def abort_soon(self) -> None:
        """Do not wait for long for the client to take the last words."""
        self._loop.call_later(ENDING_S, self.abort)

    def stop(self) -> None:
        """Have the client go elsewhere, once it has heard its answers."""
        self.is_stopping = True
        if not self.is_known:
            self.close(STOPS)

    # Frames

    def _hear(self, kind: int, payload: bytes) -> None:
        if kind == Kind.LOGIN:
            self._log_in(Login.decode(payload))
        elif kind == Kind.CLOSE:
            decode_reason(payload)
            assert self._transport is not None
            self._transport.close()
        elif kind != Kind.HEARTBEAT:
            raise BadFrame(f"kind {kind} is for nodes to say")

    def _hear_of_channel(self, frame: Frame) -> None:
        if frame.kind in (Kind.PUBLISHED, Kind.REFUSED, Kind.ANSWER):
            raise BadFrame(f"kind {frame.kind} is for nodes to say")
        self._channels.receive(frame)

    def _log_in(self, login: Login) -> None:
        if self.is_known:
            raise BadFrame("a second LOGIN")
        access = self.server.access
        if access.is_secure and not self._is_let_in(login):
            return
        self.authorization = login.text
        self._decoder.is_admitted = True
        heartbeat_ms = max(HEARTBEAT_MS_MIN, min(login.silence_ms // 3, HEARTBEAT_MS_MAX))
        silence_ms = max(SILENCE_MS, 3 * login.heartbeat_ms)
        self._heartbeat_s, self._silence_s = heartbeat_ms / 1_000, silence_ms / 1_000
        name = self.server.node.name
        self.send(Login(PUBLISHES | CALLS, heartbeat_ms, silence_ms, name).encode())
        self._wait_for_beat()

    def _is_let_in(self, login: Login) -> bool:
        access = self.server.access
        self._identity = Identity(access, self.common_name, self.host)
        bearer = login.text.encode("latin-1", "replace") or None
        asker = self._identity.read(Head(bearer, 0, is_chunked=False))
        if asker.refusal is not None:
            access.refusals.note(asker.refusal, "grpc")
            access.denied(Asked("grpc", "LOGIN", self.host), asker.refusal)
            self.close(str(asker.refusal))
            return False
        self.principal = asker.principal
        self._held = access.holding(Permit(asker.principal), self._refused)
        self._held.__enter__()
        return True

    def _refused(self, error: WaterclockError) -> None:
        self.close(str(error))

    def _requested(self, channel: Channel, method: int, body: bytes, is_last: bool) -> None:
        if method != CALL:
            channel.cancel(f"method {method} is unknown; {CALL} is a call")
        elif self.open_calls >= CALLS_MAX:
            channel.cancel(f"calls of a connection: {CALLS_MAX} are open already")
        else:
            ClientCall(self, channel).begin(body, is_last=is_last)

    # Time

    def _beat(self) -> None:
        """Say that we are here, and notice if the client is not, or takes nothing."""
        assert self._timer is not None
        time = self._loop.time()
        if not self.is_known:
            self.close(f"no LOGIN within {LOGIN_S:g} s")
            self.abort_soon()
            return
        # Time in which this node did not run is no silence: what was said then is not read yet.
        self.heard_at += max(0.0, time - self._timer.when())
        if self._blocked_at is not None and time - self._blocked_at >= BLOCKED_S:
            self.abort()
            return
        assert self._transport is not None
        if self._transport.is_reading() and time - self.heard_at >= self._silence_s:
            self.abort()
            return
        if time - self.said_at >= self._heartbeat_s / 2:
            self.send(encode(Kind.HEARTBEAT))
        self._wait_for_beat()

    def _wait_for_beat(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._heartbeat_s / 2, self._beat)

    # Writing

    def answer(self, kind: Kind, number: int, payload: bytes) -> None:
        """Answer a publish, together with all else of this turn of the loop."""
        self._output.append(encode(kind, number, payload))
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._is_writing_soon:
            self._is_writing_soon = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_writing_soon = False
        if self._output and not self.is_blocked:
            output, self._output = self._output, []
            self.send(b"".join(output))
        while not self.is_blocked and (output := self._channels.output()):
            self.send(b"".join(output))
