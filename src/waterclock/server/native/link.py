"""One connection of a client: it logs in, then publishes and calls, many at once.

    publishes   without a task, in the order they came (`publishing.py`)
    calls       the methods of the gRPC API, each on a channel (`calling.py`)

What comes is answered in one write for each turn of the loop. A client that does not read its
answers is not read either, and is cut off if that lasts.
"""

import asyncio
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.peer_link.client_frames import (
    CALL,
    CALLS,
    CALLS_MAX,
    OF_CLIENTS,
    PUBLISHES,
    Login,
)
from waterclock.cluster.peer_link.frames import (
    BadFrame,
    Decoder,
    Frame,
    Kind,
    decode_reason,
    encode,
)
from waterclock.model.errors import Unreachable, WaterclockError
from waterclock.runtime.channel_link import ChannelLink
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
ENDING_S: Final = 1.0
REFUSED_S: Final = 5.0
"""How long a client whose principal may not go on is told so."""
STOPS: Final = "the node stops"


class ClientLink(ChannelLink):
    """One connection. Made by `NativeServer.take`."""

    def __init__(self, server: "NativeServer", host: str, common_name: str | None) -> None:
        super().__init__(self._requested, is_dialler=False)
        self.server = server
        self.host = host
        self.common_name = common_name
        self.authorization = ""
        self.principal: Principal | None = None
        """Who is there, on a secure node."""
        self.refused: WaterclockError | None = None
        """Why its principal may not go on."""
        self.is_stopping = False
        self.publishing = Publishing(self)
        self.open_calls = 0
        self._decoder = Decoder(OF_CLIENTS)
        self._identity: Identity | None = None
        self._held: AbstractContextManager[None] | None = None

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
        return bool(self.open_calls or self.publishing or self._frames or self.unsent_bytes)

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the login."""
        super().connection_made(transport)
        self.server.links.add(self)
        self._timer = self._loop.call_later(LOGIN_S, self._strangers_time_is_over)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything; calls are cancelled, what was appended stays."""
        super().connection_lost(exc)
        self.server.links.discard(self)
        self.publishing.close()
        self.channels.lose(Unreachable("the client has gone"))
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
        super().pause_writing()
        self.read_or_not()

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
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
        self._is_reading = transport.is_reading()

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
            self._hang_up()
        elif kind != Kind.HEARTBEAT:
            raise BadFrame(f"kind {kind} is for nodes to say")

    def _hear_of_channel(self, frame: Frame) -> None:
        if frame.kind in (Kind.PUBLISHED, Kind.REFUSED, Kind.ANSWER):
            raise BadFrame(f"kind {frame.kind} is for nodes to say")
        self.channels.receive(frame)

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
        name = self.server.node.name
        self.send(Login(PUBLISHES | CALLS, heartbeat_ms, silence_ms, name).encode())
        self._begin_beats(heartbeat_ms, silence_ms)

    def _is_let_in(self, login: Login) -> bool:
        access = self.server.access
        self._identity = Identity(access, self.common_name, self.host, is_link=True)
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
        """End soon. Each call and publish, open or new, is told why before that; who only hears
        that the connection has ended might take the node for down."""
        self.refused = error
        self._loop.call_later(REFUSED_S, self.close, str(error))

    def _requested(self, channel: Channel, method: int, body: bytes, is_last: bool) -> None:
        if method != CALL:
            channel.cancel(f"method {method} is unknown; {CALL} is a call")
        elif self.open_calls >= CALLS_MAX:
            channel.cancel(f"calls of a connection: {CALLS_MAX} are open already")
        else:
            ClientCall(self, channel).begin(body, is_last=is_last)

    # Time

    def _strangers_time_is_over(self) -> None:
        self.close(f"no LOGIN within {LOGIN_S:g} s")
        self.abort_soon()

    def _ends_by_itself(self, time: float) -> bool:
        """It has not read what it is sent for too long."""
        is_over = self._blocked_at is not None and time - self._blocked_at >= BLOCKED_S
        if is_over:
            self.abort()
        return is_over

    # Writing

    def answer(self, kind: Kind, number: int, payload: bytes) -> None:
        """Answer a publish, together with all else of this turn of the loop."""
        self._say(encode(kind, number, payload))
