"""HTTP/1.1 on llhttp, without a framework: 90 K small requests a second where those do 5.

One connection is one `asyncio.Protocol`. Requests may be pipelined; they are answered in order, the
next one once the one before is answered. A client that closes, or half-closes, is gone: its
requests that are not answered yet are cancelled. To see that, the server never stops reading while
an answer is under way: what comes then is queued, or dropped once it is too much. What bounds a
client:

- head, body, pipelined requests and connections have limits (`HttpLimits`); over one of them is 4xx
  or 503, said in its turn, and the connection ends;
- a request must be whole within `request_s` of its first byte, and a connection without one is
  closed after `idle_s`, so clients that drip bytes do not hold a connection (slow loris);
- a client that does not read answers gets no more: nothing is read or answered until the socket
  drains, and of an answer in pieces no further piece is made. One that reads none for `request_s`
  is cut off.

Time is counted in sweeps, about one a second, for all connections together: no timer each. A
connection that waits, or has nothing to do, keeps no parser, no queue and no task.
"""

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, cast

from waterclock.model.errors import Forbidden, NotAuthenticated, Overloaded
from waterclock.runtime.structured_log import begin_unnamed_request
from waterclock.security.tls import common_name_of
from waterclock.server.access import Access, Asked, Permit
from waterclock.server.http.counters import RequestCounters
from waterclock.server.http.identity import Asker, Identity, host_of
from waterclock.server.http.messages import (
    IS_HEAD,
    IS_LAST,
    IS_OLD,
    JSON,
    Answered,
    Later,
    Pending,
    Piece,
    Request,
    Response,
    Streamed,
    problem,
)
from waterclock.server.http.parser import RequestParser
from waterclock.server.http.problems import problem_of
from waterclock.server.http.request_queue import RequestQueue
from waterclock.server.http.sending import Sending, dispose

if TYPE_CHECKING:
    from waterclock.server.http.server import HttpServer

LINGER_SWEEPS = 2
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
TOO_MANY = 429
HELD_BACK_S = 0.25
"""How long a principal over its quota waits for the refusal that ends its connection: who connects
and asks again at once costs the others a handshake each time."""


class HttpConnection(RequestParser):
    __slots__ = (
        "_begun",
        "_counters",
        "_final_response",
        "_is_held_back",
        "_permit",
        "_queue",
        "_unsent_bytes",
        "_work",
    )

    _counters: RequestCounters
    _begun: float
    """Of the request whose answer is waited for: what counts it, and since when."""

    def __init__(self, server: "HttpServer") -> None:
        super().__init__(server)
        self._queue: RequestQueue | None = None
        """Requests whose turn has not come."""
        self._work: asyncio.Task[None] | Pending | Sending | None = None
        """The answer that is being waited for, or sent piece by piece."""
        self._unsent_bytes = 0
        """At the last sweep, while it is blocked."""
        self._final_response: Response | None = None
        """What to send last, once reading has stopped and all requests are answered."""
        self._is_held_back = False
        """That is a refusal for going too fast, and waits before it goes."""
        self._permit: Permit | None = None
        """What the last request that was begun was let in with."""

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or turn it away if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        server = self._server
        server.connections.add(self)
        server.counters.opened_connections += 1
        if server.access is not None:
            name = common_name_of(transport.get_extra_info("peercert"))
            self._identity = Identity(server.access, name, host_of(transport))
        elif server.is_audited:
            self._asker = Asker(address=host_of(transport))
        if len(server.connections) > server.limits.connections_max:
            limit = server.limits.connections_max
            detail = f"too many connections (at most {limit}): try again later"
            self._refuse(problem(503, detail, field="connections", limit=limit))

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything; work under way is cancelled."""
        server = self._server
        server.connections.discard(self)
        server.counters.closed_connections += 1
        if self._work is not None and not isinstance(self._work, Sending):
            server.counters.abandoned_requests += 1
        self._is_read_closed = self._is_over = True
        self._parser = None
        self._let_go()
        self._give_up_work()
        if self._identity is not None:
            self._identity.close()

    def data_received(self, data: bytes) -> None:
        """Read requests, and answer them as they are whole."""
        self._server.counters.received_bytes += len(data)
        if self._is_read_closed or (self._queue and self._is_too_far_ahead()):
            return
        if self._identity is None:
            if self._is_receiving or self._queue or not self._take_known(data):
                self._feed(data)
        else:
            self._feed(data)
            if self._identity.owed_ms:
                self._pause_for(self._identity)
        if self._work is not None and not self._is_receiving:
            # Between requests a new parser, made in 0.5 us, knows as much as this one, which takes
            # 900 bytes: an answer may take long.
            self._parser = None

    def _is_too_far_ahead(self) -> bool:
        assert self._queue is not None
        limit = self._server.limits.pipelined_max
        if len(self._queue) < limit:
            return False
        detail = f"more than {limit} requests ahead of their turn: wait for answers"
        self._refuse(problem(429, detail, error="Overloaded", field="pipelined", limit=limit))
        return True

    def pause_writing(self) -> None:
        """Answer nothing more until the client reads."""
        self._is_blocked = True
        self._since = self._server.sweeps
        self._unsent_bytes = self._transport.get_write_buffer_size()
        if not isinstance(self._work, Sending):
            # While pieces are sent, reading goes on: else nobody would see that the client goes.
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on answering."""
        self._is_blocked = False
        self._since = self._server.sweeps
        if isinstance(self._work, Sending):
            self._work.resume()
        self._transport.resume_reading()
        self._go_on()

    def _hand_over(self, data: bytes) -> None:
        self.connection_lost(None)
        self._server.hand_over(self._transport, data)

    # Answering

    def _received(self, request: Request) -> None:
        if not (self._work or self._is_read_closed or self._is_blocked or self._queue):
            self._answer(request)
        elif self._is_read_closed:  # it came behind the last one
            self._server.bodies.release(request.held)
        else:
            self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        request.handler = None  # when its turn comes, the server may be stopping
        if self._queue is None:
            self._queue = RequestQueue(self._server.bodies)
        try:
            self._queue.put(request)
        except Overloaded as error:
            self._server.bodies.release(request.held)
            self._refuse(problem_of(error))
        self._ahead_bytes = self._queue.size_bytes

    def _answer(self, request: Request) -> None:
        begun = perf_counter()
        try:
            if request.handler is None:
                response = self._server.answer(request)
            else:  # of a known head, which bears no id
                begin_unnamed_request()
                response = request.handler(request)
        except Exception as error:
            response = self._server.problem_of(error, request)
        self._permit = request.permit
        counters = request.counters or self._server.counters.unmatched
        if type(response) is Response:
            self._write(response, request.response_flags, request.origin)
            counters.note(response.status, begun)
            if request.held:
                self._server.bodies.release(request.held)
            return
        self._counters, self._begun = counters, begun
        if not isinstance(response, Pending) and isinstance(response, Coroutine):
            self._begin_later(response, request)
            return
        self._take(response, request)
        if request.held:
            self._server.bodies.release(request.held)

    def _begin_later(self, answer: Later, request: Request) -> None:
        def over(_: "asyncio.Task[None]") -> None:
            # If the task is cancelled before its first step, nobody else ends the coroutine.
            answer.close()
            self._server.bodies.release(request.held)

        self._work = self._server.tasks.create_task(self._answer_later(answer, request))
        self._work.add_done_callback(over)

    async def _answer_later(self, answer: Later, request: Request) -> None:
        try:
            response = await answer
        except Exception as error:
            response = self._server.problem_of(error, request)
        self._work = None
        self._take(response, request)
        self._go_on()

    def _take(self, answered: Answered, request: Request) -> None:
        """Write an answer, or begin to wait for it."""
        if self._is_over or self._transport.is_closing():
            self._server.counters.abandoned_requests += 1
            dispose(answered)
        elif isinstance(answered, Pending):
            early = answered.attach(self, request)
            if early is None:
                self._work = answered
            else:
                self._write_any(early, request.response_flags, request.origin)
        else:
            self._write_any(answered, request.response_flags, request.origin)

    def settle(
        self, response: Response | Streamed, response_flags: int, origin: bytes | None
    ) -> bool:
        """Write the answer that was waited for; False if the client has gone."""
        self._work = None
        if self._transport.is_closing():
            self._server.counters.abandoned_requests += 1
            dispose(response)
            return False
        self._write_any(response, response_flags, origin)
        if self._queue or self._is_read_closed or self._is_continue_due:
            # Not at once: the caller is in the midst of something.
            self._server.loop.call_soon(self._go_on)
        else:
            self._since = self._server.sweeps
        return True

    def _write_any(
        self, response: Response | Streamed, response_flags: int, origin: bytes | None
    ) -> None:
        self._counters.note(response.status, self._begun)
        if isinstance(response, Response):
            self._write(response, response_flags, origin)
        else:
            self._begin_stream(response, response_flags, origin)

    def _write(self, response: Response, response_flags: int, origin: bytes | None) -> None:
        if self._transport.is_closing():
            return
        server = self._server
        status, body, content_type, headers = response
        is_last = response_flags & IS_LAST != 0 or server.is_stopping
        if (
            status == 200
            and content_type is JSON
            and not (headers or response_flags or origin or is_last)
        ):
            head = server.plain_head
            data = b"%b%d%b%b" % (head.before, len(body), head.after, body)
        else:
            added = server.guard.lines(origin)
            is_head = response_flags & IS_HEAD != 0
            data = response.encode(date=server.date, is_last=is_last, is_head=is_head, added=added)
        self._transport.write(data)
        server.counters.sent_bytes += len(data)
        if is_last:
            self._end()

    def _go_on(self) -> None:
        """Answer the requests that wait; then send the final response, if nothing more is read."""
        while self._queue and self._work is None and not self._is_blocked:
            if self._transport.is_closing():
                return
            request = self._queue.get()
            self._ahead_bytes = self._queue.size_bytes
            self._answer(request)
        if self._is_blocked or self._is_over or self._work is not None:
            return
        self._since = self._server.sweeps
        if self._is_read_closed:
            self._send_final_response()
        else:
            self._continue_if_due()

    def _continue_if_due(self) -> None:
        is_turn = self._work is None and not (
            self._queue or self._is_blocked or self._is_read_closed
        )
        if self._is_continue_due and is_turn and not self._in_head:
            self._is_continue_due = False
            parser = self._parser
            assert parser is not None
            # RFC 9110, 10.1.1: HTTP/1.0 does not know it. One that asks to upgrade is parsed again.
            if parser.get_http_version() != "1.0" and not parser.should_upgrade():
                self._transport.write(CONTINUE)

    # Answers in pieces

    def _begin_stream(self, streamed: Streamed, response_flags: int, origin: bytes | None) -> None:
        server = self._server
        is_last = bool(response_flags & (IS_LAST | IS_OLD)) or server.is_stopping
        is_old = bool(response_flags & IS_OLD)
        added = server.guard.lines(origin)
        head = streamed.encode_head(date=server.date, is_last=is_last, is_old=is_old, added=added)
        self._transport.write(head)
        server.counters.sent_bytes += len(head)
        if response_flags & IS_HEAD:
            dispose(streamed)
            if is_last:
                self._end()
            return
        # From now on it is blocked while anything is unsent: no piece waits behind another.
        # TLS in uvloop blocks at the mark, not above it: at 0 with nothing left to send, for good.
        self._transport.set_write_buffer_limits(high=0 if self._identity is None else 1)
        is_chunked = not is_old and streamed.length is None
        sending = Sending(streamed, self, is_chunked=is_chunked, is_last=is_last)
        self._work = sending
        server.counters.streaming += 1
        sending.begin(server.tasks)

    def send_piece(self, parts: list[Piece]) -> bool:
        """Write a piece of an answer; False if no more may be written for now."""
        self._transport.writelines(parts)
        self._server.counters.sent_bytes += sum(map(len, parts))
        return not self._is_blocked

    def sent(self, sending: Sending, *, is_whole: bool) -> None:
        """Note that all pieces of an answer are sent, or that there will be no more."""
        self._server.counters.streaming -= 1
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

    def _refuse(self, response: Response) -> None:
        """Read no more, and answer why, behind the answers to earlier requests."""
        if isinstance(self._work, Sending) and not self._is_read_closed:
            # In the midst of pieces, perhaps for long, there is no place for an answer.
            self.abort()
        elif not self._is_read_closed:
            self._final_response = response
            self._stop_reading()

    def _stop_reading(self) -> None:
        """Read no more; close once all requests are answered."""
        if self._is_read_closed:
            return
        self._is_read_closed = True
        self._is_receiving = False
        self._let_go_of_body()
        if self._work is None and not self._queue and not self._is_blocked:
            self._send_final_response()

    def _send_final_response(self) -> None:
        if self._is_over or self._transport.is_closing():
            return
        final_response = self._final_response
        is_quota = final_response is not None and final_response.status == TOO_MANY
        if is_quota and self._identity is not None and not self._is_held_back:
            self._is_held_back = True
            self._server.loop.call_later(HELD_BACK_S, self._send_final_response)
            return
        self._final_response = None
        if final_response is not None:
            self._server.counters.refused[final_response.status] += 1
            added, date = self._server.guard.lines(self._origin), self._server.date
            last = final_response.encode(date=date, is_last=True, is_head=False, added=added)
            self._transport.write(last)
            self._server.counters.sent_bytes += len(last)
        self._end()

    def _let_go(self) -> None:
        """Forget what was asked and is not begun."""
        if self._queue is not None:
            self._queue.clear()
            self._queue = None
        self._let_go_of_body()

    def _give_up_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()

    def _end(self) -> None:
        """Send no more, and read no more. The client closes, or the next sweeps do: with bytes of
        it unread, closing at once would throw away what it has yet to read (RST)."""
        self._is_read_closed = self._is_over = True
        self._since = self._server.sweeps
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._let_go()
        if self._identity is None:
            self._transport.write_eof()
        else:  # TLS has no half-close: it says goodbye, and waits for the client to say it too
            self._transport.close()

    # Called by the server

    def sweep(self) -> None:
        """Close the connection if it has been idle or slow for too long."""
        limits = self._server.limits
        if self._is_over or self._is_blocked:
            unsent = self._transport.get_write_buffer_size()
            if unsent < self._unsent_bytes:  # the client reads, however slowly
                self._since = self._server.sweeps
            self._unsent_bytes = unsent
        age = self._server.sweeps - self._since
        if self._is_over:
            if age >= (limits.request_s if self._unsent_bytes else LINGER_SWEEPS):
                self._transport.abort()
        elif self._is_blocked:
            if age >= limits.request_s:
                self._server.counters.slow_readers += 1
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
        """Let the answer under way be the last; end one in pieces, and close an idle connection."""
        if isinstance(self._work, Sending):
            self._work.stop()
        elif self._work is None and not self._queue and not self._is_blocked:
            self._is_read_closed = self._is_over = True
            self._transport.close()

    def recheck(self, access: Access) -> None:
        """End what is under way if who asked for it may not have it any more."""
        if self._work is None or self._permit is None:
            return
        try:
            access.still(self._permit)
        except (NotAuthenticated, Forbidden) as error:
            principal = self._permit.principal
            access.denied(Asked("http", "recheck", host_of(self._transport), principal), error)
            if isinstance(self._work, Sending) or self._is_read_closed:
                self.abort()
                return
            self._give_up_work()
            self._let_go()
            self._refuse(self._server.problem_of(error))

    def abort(self) -> None:
        """End the connection as it is."""
        self._is_read_closed = self._is_over = True
        self._transport.abort()
