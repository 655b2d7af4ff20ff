"""HTTP/1.1 on llhttp, without a framework: 90 K small requests a second where those do 5.

One connection is one `asyncio.Protocol`. Requests may be pipelined; they are answered in order, the
next one once the one before is answered. Who closes, or half-closes, is gone: what was asked and
is not answered yet is cancelled. What bounds a client:

- head, body, pipelined requests and connections have limits (`HttpLimits`); over one of them is 4xx
  or 503, and the connection ends;
- a request must be whole within `request_s` of its first byte, and a connection without one is
  closed after `idle_s`, so those who drip bytes do not hold a place (slow loris);
- who does not read answers gets no more: nothing is read or answered until the socket drains, and
  of an answer in pieces no further piece is made.

Time is counted in sweeps, about one a second, for all connections together: no timer each. A
connection that waits, or has nothing to do, keeps no parser, no queue and no task.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from waterclock.server.http_messages import (
    IS_HEAD,
    IS_LAST,
    IS_OLD,
    Answered,
    Later,
    Pending,
    Request,
    Response,
    Streamed,
    problem,
)
from waterclock.server.http_parsing import RequestParsing, refusal
from waterclock.server.http_streaming import Sending, dispose
from waterclock.server.problems import problem_of

if TYPE_CHECKING:
    from waterclock.server.http_server import HttpServer

LINGER_SWEEPS = 2
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class HttpConnection(RequestParsing):
    """One client."""

    __slots__ = (
        "_is_blocked",
        "_is_ended",
        "_is_refused",
        "_queue",
        "_transport",
        "_work",
    )

    _transport: asyncio.Transport

    def __init__(self, server: "HttpServer") -> None:
        super().__init__(server)
        self._queue: deque[Request] | None = None
        """Requests whose turn has not come."""
        self._work: asyncio.Task[None] | Pending | Sending | None = None
        """The answer that is being waited for, or sent piece by piece."""
        self._is_blocked = False
        self._is_refused = False
        self._is_ended = False

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or turn it away if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        server = self._server
        server.connections.add(self)
        if len(server.connections) > server.limits.connections_max:
            limit = server.limits.connections_max
            detail = f"too many connections (at most {limit}): try again later"
            self._refuse(problem(503, detail, field="connections", limit=limit))

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything; whoever was waited for is told by cancelling."""
        self._server.connections.discard(self)
        self._queue = None
        self._is_refused = True
        self._parser = None
        self._give_up_work()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls back."""
        if self._is_refused:
            return
        was_in_head = self._is_receiving and self._in_head
        if self._parser is None:
            self._parser = HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            # Answered as if nobody had asked to upgrade; what follows may be another protocol.
            self._end_after_queue()
        except HttpParserError as error:
            self._refuse(refusal(error))
        else:
            if self._is_receiving:
                if was_in_head and self._in_head:
                    self._count_unseen(len(data))
            elif self._work is not None:
                # Between requests a new parser, made in 0.5 us, knows as much as this one, which
                # takes 900 bytes: who waits for an answer may wait for long.
                self._parser = None

    def _count_unseen(self, size: int) -> None:
        """Count data within a head: of a header that never ends, `on_header` never hears."""
        self._fed_bytes += size
        if self._fed_bytes > self._server.limits.head_bytes_max:
            self._refuse(self._head_too_large())

    def pause_writing(self) -> None:
        """Answer nothing more until the client reads."""
        self._is_blocked = True
        self._since = self._server.sweeps
        if not isinstance(self._work, Sending):
            # While pieces are sent, reading goes on: else nobody would see that the client goes.
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on answering."""
        self._is_blocked = False
        self._since = self._server.sweeps
        if isinstance(self._work, Sending):
            self._work.resume()
        self._go_on()

    # Answering

    def _received(self, request: Request) -> None:
        if self._is_refused:
            return  # it came behind the last one
        if self._queue or self._work is not None or self._is_blocked:
            if self._queue is None:
                self._queue = deque()
            self._queue.append(request)
            if len(self._queue) >= self._server.limits.pipelined_max:
                self._transport.pause_reading()
        else:
            self._answer(request)

    def _answer(self, request: Request) -> None:
        try:
            response = self._server.answer(request)
        except Exception as error:
            response = problem_of(error, request)
        if isinstance(response, Response):
            self._write(response, request.manner, request.origin)
        elif isinstance(response, Coroutine):
            tasks = self._server.tasks
            later = self._work = tasks.create_task(self._answer_later(response, request))
            # If the task is cancelled before its first step, nobody else ends the coroutine.
            later.add_done_callback(lambda _: response.close())
        else:
            self._take(response, request)

    async def _answer_later(self, answer: Later, request: Request) -> None:
        try:
            response = await answer
        except Exception as error:
            response = problem_of(error, request)
        self._work = None
        self._take(response, request)
        self._go_on()

    def _take(self, answered: Answered, request: Request) -> None:
        """Write an answer, or begin to wait for it."""
        if self._is_refused or self._transport.is_closing():
            dispose(answered)
        elif isinstance(answered, Pending):
            early = answered.attach(self, request)
            if early is None:
                self._work = answered
            else:
                self._write_any(early, request.manner, request.origin)
        else:
            self._write_any(answered, request.manner, request.origin)

    def settle(self, response: Response | Streamed, manner: int, origin: bytes | None) -> bool:
        """Write the answer that was waited for; False if the client has gone."""
        self._work = None
        if self._transport.is_closing():
            dispose(response)
            return False
        self._write_any(response, manner, origin)
        if self._queue or self._is_ended or self._is_continue_due:
            # Not at once: whoever answers is in the midst of something.
            self._server.loop.call_soon(self._go_on)
        else:
            self._since = self._server.sweeps
        return True

    def _write_any(self, response: Response | Streamed, manner: int, origin: bytes | None) -> None:
        if isinstance(response, Response):
            self._write(response, manner, origin)
        else:
            self._begin_stream(response, manner, origin)

    def _write(self, response: Response, manner: int, origin: bytes | None) -> None:
        if self._transport.is_closing():
            return
        server = self._server
        cors = server.cors.plain if origin is None else server.cors.lines(origin)
        if manner or server.is_stopping:
            is_last = bool(manner & IS_LAST) or server.is_stopping
            is_head = bool(manner & IS_HEAD)
            self._transport.write(
                response.encode(date=server.date, is_last=is_last, is_head=is_head, cors=cors)
            )
            if is_last:
                self._end()
        else:
            self._transport.write(
                response.encode(date=server.date, is_last=False, is_head=False, cors=cors)
            )

    def _go_on(self) -> None:
        """Answer what has waited for its turn, and read on."""
        while self._queue and self._work is None and not self._is_blocked:
            self._answer(self._queue.popleft())
        if self._is_blocked or self._is_refused:
            return
        has_room = not self._queue or len(self._queue) < self._server.limits.pipelined_max
        if has_room and not self._is_ended:
            self._transport.resume_reading()
        if self._work is not None:
            return
        self._since = self._server.sweeps
        if self._is_ended:
            self._end()
            self._transport.resume_reading()
        else:
            self._continue_if_due()

    def _continue_if_due(self) -> None:
        is_turn = self._work is None and not self._queue and not self._is_blocked
        if self._is_continue_due and is_turn and not self._in_head:
            self._is_continue_due = False
            assert self._parser is not None
            # RFC 9110, 10.1.1: HTTP/1.0 does not know it.
            if self._parser.get_http_version() != "1.0":
                self._transport.write(CONTINUE)

    # Answers in pieces

    def _begin_stream(self, streamed: Streamed, manner: int, origin: bytes | None) -> None:
        server = self._server
        is_last = bool(manner & (IS_LAST | IS_OLD)) or server.is_stopping
        is_old = bool(manner & IS_OLD)
        cors = server.cors.lines(origin)
        self._transport.write(
            streamed.encode_head(date=server.date, is_last=is_last, is_old=is_old, cors=cors)
        )
        if manner & IS_HEAD:
            dispose(streamed)
            if is_last:
                self._end()
            return
        # From now on it is blocked while anything is unsent: no piece waits behind another.
        self._transport.set_write_buffer_limits(high=0)
        sending = Sending(streamed, self, is_chunked=not is_old, is_last=is_last)
        self._work = sending
        sending.begin(server.tasks)

    def send_piece(self, parts: list[bytes]) -> bool:
        """Write a piece of an answer; False if no more may be written for now."""
        self._transport.writelines(parts)
        return not self._is_blocked

    def sent(self, sending: Sending, *, is_whole: bool) -> None:
        """Take note that all pieces of an answer are sent, or that there will be no more."""
        if self._work is not sending:
            return
        self._work = None
        if self._transport.is_closing():
            return
        if not is_whole:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits()
        if sending.is_chunked:
            self._transport.write(LAST_CHUNK)
        if sending.is_last or self._server.is_stopping:
            self._end()
        else:
            self._go_on()

    # Ending

    def _end_after_queue(self) -> None:
        self._is_ended = True
        self._transport.pause_reading()
        self._go_on()

    def _refuse(self, response: Response) -> None:
        """Answer with an error and hear no more. What was asked before goes unanswered."""
        if self._is_refused:
            return
        was_streaming = isinstance(self._work, Sending)
        self._give_up_work()
        if was_streaming:
            # In the midst of pieces there is no place for an answer.
            self._is_refused = True
            self._transport.abort()
        elif not self._transport.is_closing():
            cors = self._server.cors.lines(self._origin)
            date = self._server.date
            self._transport.write(
                response.encode(date=date, is_last=True, is_head=False, cors=cors)
            )
            self._end()

    def _give_up_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()

    def _end(self) -> None:
        """Say no more, and hear no more. The client closes, or the next sweeps do: with bytes of
        it unread, closing at once would throw away what it has yet to read (RST)."""
        self._is_refused = True
        self._since = self._server.sweeps
        self._queue = None
        self._transport.write_eof()

    # What the server tells

    def sweep(self) -> None:
        """End the connection if it has kept its place for too long."""
        age = self._server.sweeps - self._since
        limits = self._server.limits
        if self._is_refused:
            is_unsent = self._transport.get_write_buffer_size() > 0
            if age >= (limits.request_s if is_unsent else LINGER_SWEEPS):
                self._transport.abort()
        elif self._is_blocked:
            if age >= limits.request_s:
                self._transport.abort()
        elif self._is_receiving and self._work is None:
            if age >= limits.request_s:
                self._refuse(problem(408, f"no whole request within {limits.request_s} s"))
        elif self._work is None and age >= limits.idle_s:
            self._transport.close()
        elif not self._is_receiving:
            self._parser = None

    @property
    def is_busy(self) -> bool:
        """Something is being worked on, or sent."""
        is_working = self._work is not None or bool(self._queue)
        return is_working or self._transport.get_write_buffer_size() > 0

    def stop(self) -> None:
        """Let what is under way be the last: pieces end here, and who asked nothing may go."""
        if isinstance(self._work, Sending):
            self._work.stop()
        elif self._work is None and not self._queue and not self._is_blocked:
            self._is_refused = True
            self._transport.close()

    def abort(self) -> None:
        """End the connection as it is."""
        self._is_refused = True
        self._transport.abort()
