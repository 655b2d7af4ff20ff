"""HTTP/1.1 by a socket that blocks: one connection to one address, one request at a time."""

import select
import socket
import ssl
import time

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from waterclock.client.errors import NotConnected, tls_failure, unreachable
from waterclock.client.streams.http_request import (
    ANSWER_BYTES_MAX,
    SPEAKS_GRPC,
    ConnectionBroken,
    HttpAnswer,
    HttpRequest,
    encoded_request,
    is_http2,
    request_head,
)
from waterclock.model.errors import BadInput, TimedOut, WaterclockError
from waterclock.security.credential import Credential
from waterclock.security.tls import client_context

_RECEIVE_BYTES = 65_536


class BlockingHttp:
    """The connection to a URL such as `http://localhost:8080`, made when it is needed.

    With a credential it is of TLS, and its token goes with every request.
    """

    def __init__(self, url: str, credential: Credential | None) -> None:
        self.url = url
        self._host, self._port, self._head = request_head(url, credential)
        self._tls = None if credential is None else client_context(credential.ca_pem)
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<BlockingHttp {self.url}>"

    async def ask(self, request: HttpRequest, *, timeout_s: float) -> HttpAnswer:
        """Return the answer to a request; if none comes in time, raise TimedOut."""
        ends_at = time.monotonic() + timeout_s
        connection = self._connected(timeout_s)
        try:
            answer, is_kept = self._asked(connection, encoded_request(self._head, request), ends_at)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise TimedOut(f"{self.url} did not answer in time") from None
            if isinstance(error, OSError):
                raise self._broken(error.strerror or str(error)) from None
            raise
        if not is_kept:
            self.close()
        return answer

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self, timeout_s: float) -> socket.socket:
        if self._socket is not None and _is_closed(self._socket):
            self.close()
        if self._socket is not None:
            return self._socket
        try:
            made = socket.create_connection((self._host, self._port), timeout_s)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname=self._host)
        except ssl.SSLError as error:
            failure = tls_failure(self.url, str(error))
            raise failure or self._not_connected(error.reason or str(error)) from None
        except OSError as error:
            raise self._not_connected(error.strerror or str(error)) from None
        self._socket = made
        return made

    def _asked(
        self, connection: socket.socket, request: bytes, ends_at: float
    ) -> tuple[HttpAnswer, bool]:
        reader = _Reader()
        connection.settimeout(max(ends_at - time.monotonic(), 0.001))
        connection.sendall(request)
        while not reader.is_whole:
            connection.settimeout(max(ends_at - time.monotonic(), 0.001))
            data = connection.recv(_RECEIVE_BYTES)
            if not data:
                if not reader.ends_with_connection:
                    raise self._broken("closed by the other side")
                break
            reader.feed(data)
        return reader.answer(), reader.is_kept

    def _broken(self, reason: str) -> ConnectionBroken:
        lost = f"the connection to {self.url} was lost, what was asked may have happened"
        return ConnectionBroken(f"{lost}: {reason}")

    def _not_connected(self, reason: str) -> WaterclockError:
        return NotConnected(str(unreachable(self.url, reason)))


class _Reader:
    """Reads one answer; the parser calls it back."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._has_length = False
        self._is_in_body = False
        self._content_type = ""
        self._body = bytearray()
        self.is_whole = False
        self.is_kept = False

    @property
    def ends_with_connection(self) -> bool:
        """The answer is all that comes (RFC 9112, 6.3)."""
        return self._is_in_body and not self._has_length

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if is_http2(data):
                raise BadInput(SPEAKS_GRPC) from None
            raise ConnectionBroken(f"what came is no answer: {error}") from None
        if len(self._body) > ANSWER_BYTES_MAX:
            raise ConnectionBroken(f"an answer exceeds {ANSWER_BYTES_MAX} bytes")

    def answer(self) -> HttpAnswer:
        return HttpAnswer(self._parser.get_status_code(), self._content_type, bytes(self._body))

    # Callbacks of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"content-type":
                self._content_type = value.decode("latin-1")
            case b"content-length" | b"transfer-encoding":
                self._has_length = True

    def on_headers_complete(self) -> None:
        """Expect a body."""
        self._is_in_body = True

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._body += piece

    def on_message_complete(self) -> None:
        """Note the end, unless the answer itself is still to come (RFC 9110, 15.2)."""
        if self._parser.get_status_code() < 200:
            self._has_length = self._is_in_body = False
            return
        self.is_whole = True
        self.is_kept = self._parser.should_keep_alive()


def _is_closed(connection: socket.socket) -> bool:
    """Return whether anything came that nobody asked for: at a node, only the end does."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
