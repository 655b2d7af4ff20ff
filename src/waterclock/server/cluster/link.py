"""One connection between two nodes: the handshake, heartbeats, and the channels over it."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.peer_link.frames import (
    AUTH_BYTES,
    BadFrame,
    Decoder,
    Frame,
    Hello,
    Kind,
    decode_auth,
    decode_hello,
    decode_reason,
    encode_auth,
    encode_hello,
)
from waterclock.model.errors import NotAuthenticated, Unreachable
from waterclock.runtime.channel_link import ChannelLink
from waterclock.security.shared_secret import SharedSecret

_SCOPE: Final = b"waterclock peer 1"
_ROLES: Final = (b"dialled", b"accepted")
HANDSHAKE_S: Final = 5.0


class PeerLink(ChannelLink):
    """One end of a connection to another node. It is used once.

    `on_hello` is called when the link is up, `on_request` for each thing the other node asks, and
    `on_down` once, with why.
    """

    def __init__(
        self,
        hello: Hello,
        secrets: tuple[bytes, ...],
        *,
        is_dialler: bool,
        on_hello: Callable[["PeerLink", Hello], None],
        on_request: Callable[["PeerLink", Channel, int, bytes, bool], None],
        on_down: Callable[["PeerLink", str], None],
    ) -> None:
        super().__init__(lambda *request: on_request(self, *request), is_dialler=is_dialler)
        self.is_dialler = is_dialler
        self.peer: Hello | None = None
        """Who is there, once it has proved itself and said so."""
        self.ended = asyncio.Event()
        self._hello = hello
        self._proof: SharedSecret | None = None
        if secrets:
            secret, *others = secrets
            nonce = os.urandom(AUTH_BYTES)
            self._proof = SharedSecret(
                secret, _SCOPE, _ROLES, is_first=is_dialler, nonce=nonce, others=tuple(others)
            )
        self._decoder = Decoder()
        self._on_hello = on_hello
        self._on_down = on_down
        self.is_parted = False
        """One of the two ended it on purpose, and said so."""
        self._idle_why = ""

    def __repr__(self) -> str:
        return f"<PeerLink to {self.peer.node_id if self.peer else 'a stranger'}>"

    @property
    def is_up(self) -> bool:
        """Whether requests can be sent."""
        return self.peer is not None and self.is_open

    def close(self, why: str) -> None:
        """Say why, and end."""
        self.is_parted |= self.is_open
        super().close(why)

    def close_when_idle(self, why: str) -> None:
        """End once what is open has been answered, and both know that there is another link."""
        self._idle_why = why

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        super().connection_made(transport)
        self._timer = self._loop.call_later(HANDSHAKE_S, self._strangers_time_is_over)
        if self._proof is None:
            self._introduce()
        else:
            self.send(encode_auth(self._proof.nonce, is_proof=False))

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self.heard_at = self._loop.time()
        try:
            for frame in self._decoder.feed(data):
                if frame.channel and self.peer is not None:
                    self.channels.receive(frame)
                else:
                    self._hear(frame)
        except BadFrame as error:
            self.close(error.reason)
        except NotAuthenticated as error:
            self.close(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        super().connection_lost(exc)
        why = self._why or (f"the connection broke: {exc}" if exc else "the other side hung up")
        who = self.peer.node_id if self.peer else "the node"
        self.channels.lose(Unreachable(f"{who} cannot be reached: {why}"))
        self._on_down(self, why)
        self.ended.set()

    # Frames

    def _hear(self, frame: Frame) -> None:
        if frame.kind == Kind.AUTH:
            self._prove(*decode_auth(frame.payload))
        elif frame.kind == Kind.HELLO:
            self._meet(decode_hello(frame.payload))
        elif frame.kind == Kind.CLOSE:
            self._why = f"it says: {decode_reason(frame.payload)}"
            self.is_parted = True
            self._hang_up()
        elif frame.kind != Kind.HEARTBEAT:
            raise BadFrame("say first who you are")

    def _prove(self, is_proof: bool, data: bytes) -> None:
        if self._proof is None:
            raise NotAuthenticated("one side has a cluster secret and the other has none")
        heard = self._proof.proved if is_proof else self._proof.challenged
        if (proof := heard(data)) is not None:
            self.send(encode_auth(proof, is_proof=True))
        if self._proof.is_done:
            self._introduce()

    def _introduce(self) -> None:
        self._decoder.is_admitted = True
        self.send(encode_hello(self._hello))

    def _meet(self, peer: Hello) -> None:
        if not self._decoder.is_admitted:
            raise NotAuthenticated("there is a cluster secret: prove first that you know it")
        if self.peer is not None:
            raise BadFrame("a second HELLO")
        if peer.cluster != self._hello.cluster:
            raise BadFrame(f"this is cluster {self._hello.cluster!r}, not {peer.cluster!r}")
        if peer.node_id == self._hello.node_id:
            raise BadFrame(f"both nodes are called {peer.node_id!r}")
        if peer.heartbeat_ms > self._hello.silence_ms:
            raise BadFrame(f"a heartbeat each {peer.heartbeat_ms} ms is too seldom here")
        self.peer = peer
        self._on_hello(self, peer)
        self._begin_beats(self._hello.heartbeat_ms, self._hello.silence_ms)

    # Time

    def _strangers_time_is_over(self) -> None:
        self.close(f"not introduced within {HANDSHAKE_S:g} s")

    def _ends_by_itself(self, time: float) -> bool:
        """Another link has taken its place, and nothing is open here."""
        is_over = bool(self._idle_why) and not self.channels
        if is_over:
            self.close(self._idle_why)
        return is_over
