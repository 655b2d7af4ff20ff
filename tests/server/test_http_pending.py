"""Answers that somebody gives later: no task waits, the client may go, order is kept."""

import asyncio

import pytest

from tests.server.http_client import raw_client, until
from tests.server.http_serving import get, served
from waterclock.server.http.messages import Pending, Request, Response, Streamed
from waterclock.server.http.routes import Routes
from waterclock.server.http.server import HttpLimits


class Waiting:
    """Lets all who ask wait."""

    def __init__(self) -> None:
        self.polls: list[Pending] = []
        self.gone: list[Pending] = []

    def poll(self, _: Request) -> Pending:
        poll = Pending(self.gone.append)
        self.polls.append(poll)
        return poll

    def plain(self, _: Request) -> Response:
        return Response(200, b"plain")

    def large(self, _: Request) -> Response:
        return Response(200, bytes(30 << 20))

    def routes(self) -> Routes:
        return {
            b"/poll": {b"GET": self.poll},
            b"/plain": {b"GET": self.plain},
            b"/large": {b"GET": self.large},
        }


async def test_a_poll_is_answered_later_and_without_a_task():
    waiting = Waiting()
    async with served(waiting.routes()) as server, raw_client(server.port) as client:
        tasks = len(asyncio.all_tasks())
        client.send(get("/poll"))
        await until(lambda: waiting.polls)
        assert len(asyncio.all_tasks()) == tasks

        assert waiting.polls[0].answer(Response(200, b"here"))
        assert (await client.answer()).body == b"here"
        assert not waiting.polls[0].answer(Response(200, b"again"))
        assert (await client.ask(get("/plain"))).body == b"plain"


async def test_what_was_asked_behind_a_poll_is_answered_after_it_and_in_a_later_turn():
    waiting = Waiting()
    async with served(waiting.routes()) as server, raw_client(server.port) as client:
        client.send(get("/poll") + get("/plain") + get("/poll"))
        await until(lambda: waiting.polls)
        waiting.polls[0].answer(Response(200, b"first"))
        assert len(waiting.polls) == 1  # whoever answers is not interrupted by the next one

        answers = [(await client.answer()).body for _ in range(2)]
        await until(lambda: len(waiting.polls) == 2)
        waiting.polls[1].answer(Response(200, b"third"))
        assert [*answers, (await client.answer()).body] == [b"first", b"plain", b"third"]


@pytest.mark.parametrize("leave", ["abort", "write_eof"])
async def test_who_goes_while_waiting_is_told_of_once(leave):
    waiting = Waiting()
    async with served(waiting.routes()) as server, raw_client(server.port) as client:
        client.send(get("/poll"))
        await until(lambda: waiting.polls)
        if leave == "abort":
            client.writer.transport.abort()
        else:
            client.writer.write_eof()
        await until(lambda: waiting.gone)

        assert waiting.gone == waiting.polls
        assert not waiting.polls[0].answer(Response(200))
        await until(lambda: not server.connections)


async def test_who_goes_is_seen_also_after_answers_it_read_late():
    waiting = Waiting()
    async with served(waiting.routes()) as server, raw_client(server.port) as client:
        client.send(get("/large") + get("/poll"))
        await until(lambda: any(c._is_blocked for c in server.connections))
        await client.answer()
        await until(lambda: waiting.polls)
        client.writer.write_eof()
        await until(lambda: waiting.gone)


async def test_who_goes_is_seen_also_behind_many_requests():
    waiting = Waiting()
    limits = HttpLimits(pipelined_max=4)
    async with served(waiting.routes(), limits) as server, raw_client(server.port) as client:
        client.send(get("/poll") * 5)
        await until(lambda: waiting.polls)
        (connection,) = server.connections
        await until(lambda: connection._queue and len(connection._queue) == 4)
        waiting.polls[0].answer(Response(200, b"first"))
        await until(lambda: len(waiting.polls) == 2)
        client.writer.write_eof()
        await until(lambda: waiting.gone)

        assert waiting.gone == waiting.polls[1:]


async def test_an_answer_given_before_the_handler_returns_is_written():
    def eager(_: Request) -> Pending:
        poll = Pending()
        poll.answer(Response(200, b"early"))
        return poll

    async with served({b"/": {b"GET": eager}}) as server, raw_client(server.port) as client:
        assert (await client.ask(get("/"))).body == b"early"


async def test_a_coroutine_may_return_a_poll_and_a_poll_may_be_answered_in_pieces():
    waiting = Waiting()

    async def later(request: Request) -> Pending:
        await asyncio.sleep(0)
        return waiting.poll(request)

    async def pieces():
        yield b"one"
        yield b"two"

    async with served({b"/": {b"GET": later}}) as server, raw_client(server.port) as client:
        client.send(get("/"))
        await until(lambda: waiting.polls)
        waiting.polls[0].answer(Streamed(200, pieces()))

        assert (await client.answer()).body == b"onetwo"


async def test_a_poll_outlives_the_limits_for_requests():
    waiting = Waiting()
    limits = HttpLimits(idle_s=1, request_s=1)
    async with served(waiting.routes(), limits) as server, raw_client(server.port) as client:
        client.send(get("/poll"))
        await until(lambda: waiting.polls)
        for _ in range(10):
            server.sweep()
        waiting.polls[0].answer(Response(200, b"late"))

        assert (await client.answer()).body == b"late"


async def test_polls_left_when_the_server_ends_are_gone():
    waiting = Waiting()
    async with served(waiting.routes()) as server, raw_client(server.port) as client:
        client.send(get("/poll"))
        await until(lambda: waiting.polls)
        server.stop()
        assert not waiting.gone  # it may still be answered
    await until(lambda: waiting.gone)


async def test_a_waiting_connection_keeps_little():
    waiting = Waiting()
    async with served(waiting.routes()) as server, raw_client(server.port) as client:
        client.send(get("/poll"))
        await until(lambda: waiting.polls)
        (connection,) = server.connections

        kept = (connection._parser, connection._queue, connection._body, connection._headers)
        assert kept == (None, None, None, [])
        assert not hasattr(connection, "__dict__")
