"""One connection of the native protocol to a node: publishes by number, and calls over channels.

All that is said in one turn of the loop goes in one write. Who waits for an answer hears at once
when the connection is lost; nothing is sent twice here, as whoever asked knows whether it may be.
"""

import asyncio
import ssl
from typing import Any, Final
from urllib.parse import urlsplit

from waterclock.client.errors import NotConnected, error_of_problem, unreachable
from waterclock.cluster.peer_link.client_frames import CALLS, OF_CLIENTS, PUBLISHES, Login
from waterclock.cluster.peer_link.frames import (
    PAYLOAD_BYTES_MAX,
    BadFrame,
    Decoder,
    Frame,
    Kind,
    decode_reason,
    encode,
)
from waterclock.model.errors import Unreachable
from waterclock.runtime.channel_link import ChannelLink
from waterclock.security.credential import Credential
from waterclock.security.tls import client_context
from waterclock.v1.broker_pb2 import Problem, PublishBatchResponse

PATIENT: Final = (20_000, 60_000)
WATCHFUL: Final = (1_000, 3_500)
"""Heartbeat and silence in ms: where there is no other node to be asked, and where there is."""
NEEDED: Final = PUBLISHES | CALLS

Answer = asyncio.Future[PublishBatchResponse]


class NodeLink(ChannelLink):
    """A connection to a node. Make one with `dial`; it is used once."""

    def __init__(self, address: str, authorization: str, *, is_alone: bool) -> None:
        super().__init__(lambda *_: None, is_dialler=True)
        heartbeat_ms, silence_ms = PATIENT if is_alone else WATCHFUL
        self.address = address
        """The node's address for gRPC, by which the client knows it."""
        self.node_name = ""
        """As the node says itself."""
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended = asyncio.Event()
        self._login = Login(NEEDED, heartbeat_ms, silence_ms, authorization)
        self._decoder = Decoder(OF_CLIENTS)
        self._number = 0
        self._waiting: dict[int, Answer] = {}

    def __repr__(self) -> str:
        state = "up" if self.is_up else "down"
        return f"<NodeLink to {self.address}, {state}, {len(self._waiting)} publishes>"

    @property
    def is_up(self) -> bool:
        """Whether it can be used."""
        return self._decoder.is_admitted and self.is_open

    # What the client does

    def publish(self, request: bytes) -> Answer:
        """Send a PublishBatchRequest; its answer comes, or the error. It must fit in a frame."""
        assert fits(len(request)), len(request)
        answer: Answer = self._loop.create_future()
        if not self.is_up:
            answer.set_exception(self.lost())
            return answer
        self._number += 1
        self._waiting[self._number] = answer
        self._say(encode(Kind.PUBLISH, self._number, request))
        return answer

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Log in."""
        super().connection_made(transport)
        self.send(self._login.encode())

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        super().connection_lost(exc)
        self._why = self._why or (str(exc) if exc else "the connection was lost")
        error = self.lost()
        self.channels.lose(error)
        waiting, self._waiting = self._waiting, {}
        answers: list[asyncio.Future[Any]] = [self.opened, *waiting.values()]
        for answer in answers:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # whoever waited for it may be gone
        self.ended.set()

    def lost(self) -> Unreachable:
        """Return the error of who would use it though it is not up."""
        return unreachable(self.address, self._why or "the connection was lost")

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self.heard_at = self._loop.time()
        try:
            for kind, number, payload in self._decoder.feed(data):
                if kind == Kind.PUBLISHED:
                    answer = self._waiting.pop(number, None)
                    if answer is not None and not answer.done():
                        answer.set_result(PublishBatchResponse.FromString(payload))
                elif kind == Kind.REFUSED:
                    self._refused(number, payload)
                elif number:
                    self.channels.receive(Frame(kind, number, payload))
                else:
                    self._hear(kind, payload)
        except BadFrame as error:
            self.close(error.reason)

    def _refused(self, number: int, payload: bytes) -> None:
        answer = self._waiting.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_exception(error_of_problem(Problem.FromString(payload), self.address))

    def _hear(self, kind: int, payload: bytes) -> None:
        if kind == Kind.LOGIN:
            login = Login.decode(payload)
            if login.features & NEEDED != NEEDED:
                raise BadFrame(f"features {login.features}; {NEEDED} are needed")
            self._decoder.is_admitted = True
            self.node_name = login.text
            if not self.opened.done():
                self.opened.set_result(None)
            self._begin_beats(self._login.heartbeat_ms, self._login.silence_ms)
        elif kind == Kind.CLOSE:
            self._why = decode_reason(payload)
            self._hang_up()


def fits(size: int) -> bool:
    """Return whether a publish of so many bytes goes in one frame."""
    return size <= PAYLOAD_BYTES_MAX


async def dial(
    url: str, address: str, credential: Credential | None, *, is_alone: bool
) -> NodeLink:
    """Return a link to the node whose HTTP is at a URL; raises Unreachable if there is none."""
    parts = urlsplit(url)
    tls: ssl.SSLContext | None = None
    authorization = ""
    if credential is not None:
        tls, authorization = client_context(credential.ca_pem), f"Bearer {credential.token}"
    loop = asyncio.get_running_loop()
    link = NodeLink(address, authorization, is_alone=is_alone)
    try:
        await loop.create_connection(lambda: link, parts.hostname or "", parts.port or 0, ssl=tls)
        await link.opened
    except (OSError, ssl.SSLError) as error:
        raise NotConnected(f"{url} does not answer: {error}") from error
    # Also one that was connected in the very turn in which nobody wanted it any more.
    except asyncio.CancelledError:
        link.abort()
        raise
    return link
