"""HTTP/1.1 as the client speaks it: one connection, one request on it at a time.

An answer is given whole. Where one does not come whole - the connection is lost, the wait is
cancelled, the bytes are no HTTP - the connection is closed and not used again: nobody may read the
end of another's answer. What was sent then may have happened, which `ConnectionBroken` says;
`NotConnected` says that nothing was sent.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from waterclock.client.streams.http_request import (
    ANSWER_BYTES_MAX,
    HEAD_BYTES_MAX,
    SPEAKS_GRPC,
    ConnectionBroken,
    HttpAnswer,
    is_http2,
)
from waterclock.model.errors import BadInput, WaterclockError


class HttpConnection(asyncio.Protocol):
    """One connection. `ask` on it only while `is_usable`; `on_lost` is called once it is over."""

    _transport: asyncio.Transport

    def __init__(self, on_lost: "Callable[[HttpConnection], None]") -> None:
        self._on_lost = on_lost
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self._is_over = False
        self._problem: BadInput | None = None
        """Why it cannot be used, if it is the address that is wrong."""
        self.has_heard = False
        """Something came from the other side."""
        self.idle_since = 0.0
        """By the loop's clock; the pool's own."""
        self._parser = HttpResponseParser(self)
        self.on_message_begin()

    def __repr__(self) -> str:
        state = "over" if self._is_over else "idle" if self._waiting is None else "waiting"
        return f"<HttpConnection {state}>"

    @property
    def is_usable(self) -> bool:
        """Another request may be sent."""
        return not self._is_over and self._waiting is None

    async def ask(self, request: bytes) -> HttpAnswer:
        """Send a request and return its answer. If this is cancelled, the connection is over."""
        if self._is_over:  # right after it was made
            raise self._problem or ConnectionBroken("closed by the other side")
        assert self._waiting is None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiting
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiting = None

    def abort(self) -> None:
        """Hang up at once."""
        self._is_over = True
        self._transport.abort()

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it; what waits for it fails."""
        self._fail(str(exc or "closed by the other side"))
        self._on_lost(self)

    def eof_received(self) -> None:
        """Take the end of what the node says for its end, or for that of an answer which does not
        say its length (RFC 9112, 6.3)."""
        if self._is_in_body and self._ends_with_connection:
            self.on_message_complete()
        self._fail("closed by the other side")

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls back."""
        self.has_heard = True
        if self._waiting is None or self._waiting.done():
            if is_http2(data):  # gRPC speaks first
                self._problem = BadInput(SPEAKS_GRPC)
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if is_http2(data):
                self._fail_with(BadInput(SPEAKS_GRPC))
            self._fail(f"what came is no answer: {error}")
        else:
            if not self._is_in_body:
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES_MAX:
                    self._fail(f"the head of an answer exceeds {HEAD_BYTES_MAX} bytes")

    def _fail(self, reason: str) -> None:
        self._fail_with(ConnectionBroken(reason))

    def _fail_with(self, error: WaterclockError) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
        self.abort()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """Expect a head."""
        if self._waiting is not None and self._waiting.done():
            self.abort()  # an answer that nobody asked for, right behind the one that was
        self._content_type = ""
        self._body: list[bytes] = []
        self._body_bytes = self._head_bytes = 0
        self._is_in_body = False
        self._ends_with_connection = True

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"content-type":
                self._content_type = value.decode("latin-1")
            case b"content-length" | b"transfer-encoding":
                self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        """Expect a body."""
        self._is_in_body = True

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._body.append(piece)
        self._body_bytes += len(piece)
        if self._body_bytes > ANSWER_BYTES_MAX:
            self._fail(f"an answer exceeds {ANSWER_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        """Hand over the answer."""
        status = self._parser.get_status_code()
        waiting = self._waiting
        assert waiting is not None
        if status < 200 or waiting.done():  # RFC 9110, 15.2: the answer itself is still to come
            return
        waiting.set_result(HttpAnswer(status, self._content_type, b"".join(self._body)))
        if not self._parser.should_keep_alive():
            # Last, for over TLS this reads on, and comes back here with the end of the connection.
            self._is_over = True
            self._transport.close()
