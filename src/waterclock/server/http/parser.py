"""The receiving half of a connection: bytes become requests, within limits.

A whole request with a head that came before is not parsed at all (`known_heads.py`). For others the
parser (llhttp) calls the `on_` methods while it is fed. What is over a limit, or is no HTTP,
raises `Refused` out of it with what to answer. A client that asks `Expect: 100-continue` is sent
100 before its body is read, once it is its turn; a body that would be too large is refused then.

A wish to upgrade is not heard (RFC 9110, 7.8). The parser would skip the body and stop behind the
head: so it is given the head again without that wish, and what follows.

Bodies count against one bound for all connections, from their first bytes on until they are
answered; small ones do not, for a connection has but one of them at a time.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
    parse_url,
)

from waterclock.model.errors import Overloaded, WaterclockError
from waterclock.model.units import KIB
from waterclock.runtime.structured_log import begin_request
from waterclock.server.access import Asked
from waterclock.server.http.identity import Asker, Identity, head_of
from waterclock.server.http.known_heads import HEAD_END
from waterclock.server.http.messages import (
    ANYONE_ASKS,
    IS_HEAD,
    IS_LAST,
    IS_OLD,
    Request,
    Response,
    problem,
)
from waterclock.server.http.problems import problem_of

if TYPE_CHECKING:
    from waterclock.server.http.server import HttpServer

SMALL_BYTES = 4 * KIB
"""A body up to this does not count."""
VERSIONS = ("1.0", "1.1")
STAYS = -1
"""Of a connection: no other process may have it."""


class Refused(Exception):
    """Stops the parser; carries what to answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class RequestParser(asyncio.Protocol, ABC):
    """What a connection knows of the request it is receiving."""

    __slots__ = (
        "_ahead_bytes",
        "_asker",
        "_body",
        "_body_bytes",
        "_fed_bytes",
        "_head_bytes",
        "_headers",
        "_held_bytes",
        "_hosts",
        "_identity",
        "_in_head",
        "_in_trailer",
        "_is_blocked",
        "_is_checked_by_guard",
        "_is_continue_due",
        "_is_over",
        "_is_read_closed",
        "_is_receiving",
        "_origin",
        "_parser",
        "_server",
        "_since",
        "_speaks_of_connection",
        "_transport",
        "_url",
        "forwarded",
        "moves",
    )

    _transport: asyncio.Transport
    _headers: list[tuple[bytes, bytes]]
    _body: bytes | bytearray | None
    _body_bytes: int
    _held_bytes: int
    """How much of the body counts against the bound of all."""
    _origin: bytes | None

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._identity: Identity | None = None
        """Who is on the other side, on a secure node."""
        self._asker: Asker = ANYONE_ASKS
        self._parser: HttpRequestParser | None = None
        self._since = server.sweeps
        self._is_receiving = False
        self._is_continue_due = False
        self._ahead_bytes = 0
        """Of requests whose turn has not come."""
        self._is_read_closed = False
        """What comes is dropped; requests that were read are answered yet."""
        self._is_blocked = False
        """The client does not read: it is sent no more, and nothing of it is read."""
        self._is_over = False
        """Nothing more is sent or read."""
        self.moves = STAYS
        """How often it was handed to another process."""
        self.forwarded = 0
        """Requests of it that another process has answered."""
        self._begin_request()

    def _take_known(self, data: bytes) -> bool:
        """Take a request that is whole, and the only one, if its head is known; nothing must have
        come of another."""
        server = self._server
        end = data.find(HEAD_END) + len(HEAD_END)
        head = data[:end]
        known = server.known_heads.newer.get(head) or server.known_heads.learn(head)
        if known is None or len(data) - end != known.body_bytes:
            return False
        if known.host not in server.guard.known_hosts:
            return False
        self._since = server.sweeps
        request = Request(known.method, known.path, known.query, known.headers, data[end:])
        request.handler, request.counters = known.handler, known.counters
        if self._asker is not ANYONE_ASKS:
            request.asker = self._asker
        self._received(request)
        if known.handler is None:
            known.handler, known.counters = request.handler, request.counters
        return True

    def _feed(self, data: bytes) -> None:
        """Feed the parser, which calls back."""
        # `_begin_request` makes another list.
        headers = self._headers if self._in_head or self._in_trailer else None
        body_bytes = self._body_bytes
        if self._parser is None:
            if not data[0] and self._server.native is not None:
                self._hand_over(data)
                return
            self._parser = HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as stop:
            self._feed_on(memoryview(data), stop.args[0])
        except HttpParserError as error:
            self._refuse(refusal(error))
        else:
            is_same = self._headers is headers and self._body_bytes == body_bytes
            if is_same and self._is_receiving and (self._in_head or self._in_trailer):
                self._count_unseen(len(data))

    def _pause_for(self, identity: Identity) -> None:
        """Read nothing until what was taken ahead of its time is paid for."""
        self._transport.pause_reading()
        self._server.loop.call_later(identity.owed_ms / 1_000, self._read_on)
        identity.owed_ms = 0

    def _read_on(self) -> None:
        if not self._is_over and not self._is_blocked:
            self._transport.resume_reading()

    def _feed_on(self, data: memoryview, at: int) -> None:
        """Go on behind a head that asked to upgrade, as if it had not."""
        while not self._is_read_closed:
            head = self._without_upgrade()
            if head is None:
                self._stop_reading()
                return
            self._parser = HttpRequestParser(self)
            data = data[at:]
            try:
                self._parser.feed_data(head)
                self._parser.feed_data(data)
            except HttpParserUpgrade as stop:
                at = stop.args[0]
            except HttpParserError as error:
                self._refuse(refusal(error))
            else:
                return

    def _count_unseen(self, size: int) -> None:
        """Count data within a head: of a header that never ends, `on_header` never hears."""
        self._fed_bytes += size
        if self._fed_bytes > self._server.limits.head_bytes_max:
            self._refuse(self._head_too_large())

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Something is being worked on, or sent."""

    @abstractmethod
    def _hand_over(self, data: bytes) -> None:
        """Have another protocol go on: no request begins with a byte 0."""

    @abstractmethod
    def _refuse(self, response: Response) -> None:
        """Read no more, and answer so."""

    @abstractmethod
    def _stop_reading(self) -> None:
        """Read no more; close once all requests are answered."""

    @abstractmethod
    def _received(self, request: Request) -> None:
        """Take a whole request."""

    @abstractmethod
    def _continue_if_due(self) -> None:
        """Send 100 Continue, if the client waits for that and it is its turn."""

    # Going to another process

    @property
    def descriptor(self) -> int:
        """What the kernel calls it."""
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    @property
    def is_between_requests(self) -> bool:
        """Nothing is under way, in either direction."""
        is_closed = self._is_read_closed or self._is_blocked or self._server.is_stopping
        return not (self._is_receiving or is_closed or self.is_busy)

    def hear_next(self, protocol: asyncio.Protocol) -> None:
        """Have a protocol hear what comes from now on."""
        self._transport.set_protocol(protocol)

    def leave(self) -> None:
        """Let go of what another process has taken over."""
        self.connection_lost(None)
        self._transport.set_protocol(asyncio.Protocol())
        self._transport.abort()

    # Called by the parser

    def on_message_begin(self) -> None:
        """Note that a request has begun."""
        self._is_receiving = True
        self._since = self._server.sweeps

    def on_url(self, url: bytes) -> None:
        """Take the target, or a piece of it."""
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body (trailers) are counted and dropped."""
        size = len(name)
        self._count_head(size + len(value))
        if not self._in_head:
            return
        if size == 4:
            if name.lower() == b"host":
                self._hosts += 1
                if value not in self._server.guard.known_hosts:
                    self._is_checked_by_guard = True
        elif size == 14:
            lower = name.lower()
            if lower == b"content-length":
                # llhttp has seen that it is a number.
                self._check_body(int(value))
            elif lower == b"sec-fetch-site":
                self._is_checked_by_guard = True
        elif size == 6:
            self._take_short(name.lower(), value)
        elif size == 10:
            self._take_middling(name.lower(), value)
        elif size == 17:
            self._take_long(name.lower(), value)
        self._headers.append((name, value))

    def _take_short(self, name: bytes, value: bytes) -> None:
        if name == b"origin":
            self._origin = value
            self._is_checked_by_guard = True
        elif name == b"expect":
            if value.lower() != b"100-continue":
                raise Refused(problem(417, "the only expectation that can be met is 100-continue"))
            self._is_continue_due = True

    def _take_middling(self, name: bytes, value: bytes) -> None:
        if name == b"connection":
            # Without it, HTTP/1.0 does not ask to be kept alive, and nobody to upgrade.
            self._speaks_of_connection = True
        elif name == b"user-agent" and value.startswith(b"Mozilla/"):
            self._is_checked_by_guard = True

    def _take_long(self, name: bytes, value: bytes) -> None:
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise Refused(problem(501, "the only transfer coding is chunked"))

    def on_headers_complete(self) -> None:
        """Note that the head is whole; the client may wait for 100 Continue."""
        self._in_head = False
        if self._is_checked_by_guard:
            self._check_by_guard()
        if self._identity is not None:
            self._identify(self._identity)
        if self._is_continue_due:
            self._continue_if_due()

    def _identify(self, identity: Identity) -> None:
        head = head_of(self._headers)
        self._asker = identity.read(head)
        if self._asker.refusal is not None and head.has_body:
            self._deny(self._asker.refusal)
            raise Refused(self._server.problem_of(self._asker.refusal))

    def _deny(self, error: WaterclockError) -> None:
        """Note that a request is refused at its head: by its path, for no operation was found."""
        access, parser = self._server.access, self._parser
        assert access is not None
        assert parser is not None
        given = [value for name, value in self._headers if name.lower() == b"x-request-id"]
        begin_request(given[0].decode("latin-1") if given else None)
        path = self._target().partition(b"?")[0]
        operation = f"{parser.get_method().decode('latin-1')} {path.decode('latin-1')}"
        access.denied(Asked("http", operation, self._asker.address), error)

    def _check_by_guard(self) -> None:
        parser = self._parser
        assert parser is not None
        target = self._target()
        refusal = self._server.guard.refusal(parser.get_method(), target, self._headers)
        if refusal is not None:
            raise Refused(refusal)

    def on_chunk_header(self) -> None:
        """What follows is a piece of the body or, behind the last one, the trailer."""
        self._in_trailer = True

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._is_continue_due = self._in_trailer = False
        self._body_bytes += len(body)
        self._check_body(self._body_bytes)
        if self._body_bytes > SMALL_BYTES:
            self._hold_body()
        if self._body is None:
            self._body = body
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += body

    def _hold_body(self) -> None:
        try:
            self._server.bodies.acquire_nowait(self._body_bytes - self._held_bytes)
        except Overloaded as error:
            raise Refused(problem_of(error)) from None
        self._held_bytes = self._body_bytes

    def on_message_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        method = parser.get_method()
        response_flags = 0 if method != b"HEAD" else IS_HEAD
        is_kept = parser.should_keep_alive()
        if not is_kept or self._speaks_of_connection or self._hosts != 1:
            version = parser.get_http_version()
            self._check_head(version)
            if method == b"CONNECT":
                is_kept = False
            elif parser.should_upgrade():
                return  # the parser stops here, and `_feed_on` goes on
            if version == "1.0":
                response_flags |= IS_OLD | IS_LAST
            elif not is_kept:
                response_flags |= IS_LAST
        path, _, query = self._target().partition(b"?")
        body = b"" if self._body is None else bytes(self._body)
        request = Request(
            method, path, query, self._headers, body, self._origin, response_flags, self._held_bytes
        )
        if self._identity is not None:
            request.asker = self._asker
            if self._asker.is_last:
                request.response_flags |= IS_LAST
            if body and head_of(self._headers).is_chunked:
                request.asker = self._identity.count_body(self._asker, len(body))
        elif self._asker is not ANYONE_ASKS:
            request.asker = self._asker
        self._begin_request()
        self._is_receiving = False
        self._since = self._server.sweeps
        self._received(request)

    def _check_head(self, version: str) -> None:
        if version not in VERSIONS:
            raise Refused(problem(505, f"HTTP/{version} is not spoken here: HTTP/1.1 is"))
        # RFC 9112, 3.2: a proxy in between might read another name than we do.
        if self._hosts > 1 or (not self._hosts and version != "1.0"):
            raise Refused(problem(400, f"there must be one Host, not {self._hosts}"))

    def _without_upgrade(self) -> bytes | None:
        """Return the head of the request at which the parser stopped, as if it had not asked to
        upgrade; None if there is none: what follows is another protocol."""
        parser = self._parser
        assert parser is not None
        if not self._is_receiving:
            return None
        version = parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (parser.get_method(), self._url, version)]
        for name, value in self._headers:
            if name.lower() != b"upgrade":
                lines.append(name + b": " + value)
        self._begin_request()
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _let_go_of_body(self) -> None:
        """Forget what has come of a body."""
        held, self._held_bytes = self._held_bytes, 0
        self._body = None
        if held:
            self._server.bodies.release(held)

    def _begin_request(self) -> None:
        self._url = b""
        self._headers = []
        self._body = None
        self._body_bytes = 0
        self._head_bytes = 0
        self._fed_bytes = 0
        self._held_bytes = 0
        self._hosts = 0
        self._in_head = True
        self._in_trailer = False
        self._is_checked_by_guard = False
        self._is_continue_due = False
        self._speaks_of_connection = False
        self._origin = None

    def _target(self) -> bytes:
        """Return path and query; a target may also be a whole address (RFC 9112, 3.2.2)."""
        if self._url.startswith(b"/") or b"://" not in self._url:
            return self._url
        parts = parse_url(self._url)
        path = parts.path or b"/"
        return path if parts.query is None else path + b"?" + parts.query

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._server.limits.head_bytes_max:
            raise Refused(self._head_too_large())

    def _head_too_large(self) -> Response:
        limit = self._server.limits.head_bytes_max
        return problem(431, f"the head exceeds {limit} bytes", field="head", limit=limit)

    def _check_body(self, size: int) -> None:
        limit = self._server.limits.body_bytes_max
        if size > limit:
            detail = f"the body exceeds {limit} bytes (got {size})"
            raise Refused(problem(413, detail, field="body", limit=limit, got=size))
        if self._ahead_bytes and self._ahead_bytes + size > limit:
            detail = f"requests ahead of their turn exceed {limit} bytes: wait for answers"
            raise Refused(problem(429, detail, error="Overloaded", field="body", limit=limit))


def refusal(error: HttpParserError) -> Response:
    """Return what to answer to a request that could not be parsed."""
    cause = error.__context__ if isinstance(error, HttpParserCallbackError) else error
    if isinstance(cause, Refused):
        return cause.response
    if isinstance(cause, HttpParserError):
        return problem(400, f"this is not HTTP/1.1: {cause}")
    raise error
