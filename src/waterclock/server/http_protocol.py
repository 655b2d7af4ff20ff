"""HTTP/1.1 on llhttp, without a framework: 90 K small requests a second where those do 5.

One connection is one `asyncio.Protocol`. Requests may be pipelined; they are answered in order, the
next one once the one before is answered. Who closes, or half-closes, is gone: what was asked and
is not answered yet is cancelled. What bounds a client:

- head, body, pipelined requests and connections have limits (`HttpLimits`); over one of them is 4xx
  or 503, and the connection ends;
- a request must be whole within `request_s` of its first byte, and a connection without one is
  closed after `idle_s`, so those who drip bytes do not hold a place (slow loris);
- who does not read answers gets no more: nothing is read or answered until the socket drains.

Time is counted in sweeps, about one a second, for all connections together: no timer each.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
    parse_url,
)

from waterclock.server.http_messages import Later, Request, Response, problem
from waterclock.server.statuses import log_unforeseen

if TYPE_CHECKING:
    from waterclock.server.http_server import HttpServer

LINGER_SWEEPS = 2


class _Refused(Exception):
    """Stops the parser; carries what to answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class HttpConnection(asyncio.Protocol):
    """One client. The parser calls the `on_` methods while it is fed."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_fed_bytes",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_is_blocked",
        "_is_ended",
        "_is_receiving",
        "_is_refused",
        "_parser",
        "_queue",
        "_server",
        "_since",
        "_transport",
        "_url",
        "_work",
    )

    _transport: asyncio.Transport

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._parser = HttpRequestParser(self)
        self._queue: deque[tuple[Request, bool]] = deque()
        """Requests whose turn has not come, and whether each is the last."""
        self._work: asyncio.Task[None] | None = None
        """The answer that is being waited for."""
        self._since = server.sweeps
        self._is_receiving = False
        self._is_blocked = False
        self._is_refused = False
        self._is_ended = False
        self._begin_request()

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or turn it away if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        server = self._server
        server.connections.add(self)
        if len(server.connections) > server.limits.connections_max:
            limit = server.limits.connections_max
            self._refuse(problem(503, f"too many connections (at most {limit}): try again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything; whoever was waited for is told by cancelling."""
        self._server.connections.discard(self)
        self._queue.clear()
        self._is_refused = True
        if self._work is not None:
            self._work.cancel()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls back."""
        if self._is_refused:
            return
        was_in_head = self._is_receiving and self._in_head
        if not self._is_receiving:
            self._is_receiving = True
            self._since = self._server.sweeps
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            # Answered as if nobody had asked to upgrade; what follows may be another protocol.
            self._end_after_queue()
        except HttpParserError as error:
            self._refuse(_refusal(error))
        else:
            if was_in_head and self._is_receiving and self._in_head:
                self._count_unseen(len(data))

    def pause_writing(self) -> None:
        """Answer nothing more until the client reads."""
        self._is_blocked = True
        self._since = self._server.sweeps
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on answering."""
        self._is_blocked = False
        self._since = self._server.sweeps
        self._go_on()

    # What the parser tells

    def on_url(self, url: bytes) -> None:
        """Take the target, or a piece of it."""
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body (trailers) are dropped."""
        if not self._in_head:
            return
        self._count_head(len(name) + len(value))
        if len(name) == 14 and name.lower() == b"content-length":
            # llhttp has seen that it is a number.
            self._check_body(int(value))
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body_bytes += len(body)
        self._check_body(self._body_bytes)
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Answer the request, or line it up."""
        path, _, query = self._target().partition(b"?")
        request = Request(
            self._parser.get_method(), path, query, self._headers, b"".join(self._body)
        )
        is_last = not self._parser.should_keep_alive()
        self._begin_request()
        self._is_receiving = False
        self._since = self._server.sweeps
        if self._queue or self._work is not None or self._is_blocked:
            self._queue.append((request, is_last))
            if len(self._queue) >= self._server.limits.pipelined_max:
                self._transport.pause_reading()
        else:
            self._answer(request, is_last)

    def _begin_request(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._fed_bytes = 0
        self._in_head = True

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
            raise _Refused(self._head_too_large())

    def _count_unseen(self, size: int) -> None:
        """Count data within a head: of a header that never ends, `on_header` never hears."""
        self._fed_bytes += size
        if self._fed_bytes > self._server.limits.head_bytes_max:
            self._refuse(self._head_too_large())

    def _head_too_large(self) -> Response:
        return problem(431, f"the head exceeds {self._server.limits.head_bytes_max} bytes")

    def _check_body(self, size: int) -> None:
        limit = self._server.limits.body_bytes_max
        if size > limit:
            raise _Refused(problem(413, f"the body exceeds {limit} bytes (got {size})"))

    # Answering

    def _answer(self, request: Request, is_last: bool) -> None:
        try:
            response = self._server.answer(request)
        except Exception as error:
            response = _failure(request, error)
        if isinstance(response, Response):
            self._write(response, request, is_last)
        else:
            tasks = self._server.tasks
            self._work = tasks.create_task(self._answer_later(response, request, is_last))
            # If the task is cancelled before its first step, nobody else ends the coroutine.
            self._work.add_done_callback(lambda _: response.close())

    async def _answer_later(self, answer: Later, request: Request, is_last: bool) -> None:
        try:
            response = await answer
        except Exception as error:
            response = _failure(request, error)
        self._work = None
        self._write(response, request, is_last)
        self._go_on()

    def _write(self, response: Response, request: Request, is_last: bool) -> None:
        if self._transport.is_closing():
            return
        is_last = is_last or self._server.is_stopping
        is_head = request.method == b"HEAD"
        date = self._server.date
        self._transport.write(response.encode(date=date, is_last=is_last, is_head=is_head))
        if is_last:
            self._end()

    def _go_on(self) -> None:
        """Answer what has waited for its turn, then read on."""
        while self._queue and self._work is None and not self._is_blocked:
            self._answer(*self._queue.popleft())
        if self._work is not None or self._is_blocked or self._is_refused:
            return
        self._since = self._server.sweeps
        if self._is_ended:
            self._end()
        self._transport.resume_reading()

    def _end_after_queue(self) -> None:
        self._is_ended = True
        self._transport.pause_reading()
        self._go_on()

    def _refuse(self, response: Response) -> None:
        """Answer with an error and hear no more. What was asked before goes unanswered."""
        if self._work is not None:
            self._work.cancel()
            self._work = None
        if not self._transport.is_closing():
            date = self._server.date
            self._transport.write(response.encode(date=date, is_last=True, is_head=False))
            self._end()

    def _end(self) -> None:
        """Say no more, and hear no more. The client closes, or the next sweeps do: with bytes of
        it unread, closing at once would throw away what it has yet to read (RST)."""
        self._is_refused = True
        self._since = self._server.sweeps
        self._queue.clear()
        self._transport.write_eof()

    # What the server tells

    def sweep(self) -> None:
        """End the connection if it has kept its place for too long."""
        age = self._server.sweeps - self._since
        limits = self._server.limits
        if self._is_refused:
            if age >= LINGER_SWEEPS:
                self._transport.abort()
        elif self._is_blocked:
            if age >= limits.request_s:
                self._transport.abort()
        elif self._work is not None:
            return
        elif self._is_receiving:
            if age >= limits.request_s:
                self._refuse(problem(408, f"no whole request within {limits.request_s} s"))
        elif age >= limits.idle_s:
            self._transport.close()

    def close_if_idle(self) -> None:
        """End the connection unless something was asked."""
        if self._work is None and not self._queue and not self._is_blocked:
            self._is_refused = True
            self._transport.close()

    def abort(self) -> None:
        """End the connection as it is."""
        self._is_refused = True
        self._transport.abort()


def _refusal(error: HttpParserError) -> Response:
    """Return what to answer to a request that could not be parsed."""
    cause = error.__context__ if isinstance(error, HttpParserCallbackError) else error
    if isinstance(cause, _Refused):
        return cause.response
    if isinstance(cause, HttpParserError):
        return problem(400, f"this is not HTTP/1.1: {cause}")
    raise error


def _failure(request: Request, error: Exception) -> Response:
    error_id = log_unforeseen(f"{request.method.decode()} {request.path.decode('latin-1')}", error)
    return problem(500, f"something unforeseen happened, logged as error {error_id}")
