"""HTTP over real sockets: in order, within limits, and never to the harm of others."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from tests.server.http_client import raw_client, until
from tests.server.http_serving import served
from waterclock.model.errors import BadConfig
from waterclock.server.http.connection import HttpConnection
from waterclock.server.http.messages import Request, Response, problem
from waterclock.server.http.routes import Routes
from waterclock.server.http.server import HttpLimits, HttpServer, serve_http

GET = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo:
    """Answers with what it was asked; /slow waits until it is let go."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.asked: list[Request] = []

    def echo(self, request: Request) -> Response:
        self.asked.append(request)
        return Response(200, request.query + b"|" + request.body)

    async def slow(self, request: Request) -> Response:
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Response(200, b"slow")

    def broken(self, request: Request) -> Response:
        raise ZeroDivisionError("planted")

    def large(self, request: Request) -> Response:
        return Response(200, bytes(1 << 20))


@asynccontextmanager
async def running_server(
    limits: HttpLimits | None = None,
) -> AsyncIterator[tuple[HttpServer, Echo]]:
    echo = Echo()
    routes: Routes = {
        b"/echo": {b"GET": echo.echo, b"POST": echo.echo},
        b"/slow": {b"GET": echo.slow},
        b"/broken": {b"GET": echo.broken},
        b"/large": {b"GET": echo.large},
    }
    async with served(routes, limits) as server:
        yield server, echo


def post(body: bytes) -> bytes:
    head = f"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_a_connection_serves_request_after_request():
    async with running_server() as (server, _), raw_client(server.port) as client:
        first = await client.ask(b"GET /echo?a=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        second = await client.ask(post(b"body"))

        assert (first.status, first.body) == (200, b"a=1|")
        assert (second.status, second.body) == (200, b"|body")
        assert first.headers["date"].endswith("GMT")


async def test_pipelined_requests_are_answered_in_order():
    async with running_server() as (server, echo), raw_client(server.port) as client:
        slow = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
        client.send(post(b"1") + slow + post(b"2") + slow + post(b"3"))
        answers = [await client.answer()]
        await echo.started.wait()
        assert len(echo.asked) == 1  # what came after the slow one waits for its turn
        echo.gate.set()
        answers += [await client.answer() for _ in range(4)]

        assert [a.body for a in answers] == [b"|1", b"slow", b"|2", b"slow", b"|3"]


async def test_head_is_answered_as_get_without_the_body():
    async with running_server() as (server, _), raw_client(server.port) as client:
        client.send(b"HEAD /echo?abc HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await client.answer(to_head=True)

        assert answer.headers["content-length"] == "4"
        assert (await client.get("/echo")).body == b"|"


async def test_an_unknown_path_is_404_and_a_wrong_method_405_and_the_connection_lives():
    async with running_server() as (server, _), raw_client(server.port) as client:
        lost = await client.get("/nowhere")
        wrong = await client.ask(b"DELETE /echo HTTP/1.1\r\nHost: x\r\n\r\n")

        assert lost.status == 404
        assert lost.headers["content-type"] == "application/problem+json"
        assert lost.json() == {
            "title": "Not Found",
            "status": 404,
            "detail": "there is nothing at /nowhere",
        }
        assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS, POST")
        assert (await client.get("/echo")).status == 200


async def test_http_1_0_and_connection_close_end_the_connection():
    async with running_server() as (server, _):
        for request in (
            b"GET /echo HTTP/1.0\r\n\r\n",
            b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        ):
            async with raw_client(server.port) as client:
                answer = await client.ask(request)

                assert answer.headers["connection"] == "close"
                assert await client.is_closed()


@pytest.mark.parametrize("behind", [GET, b"\x00garbage", b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_what_comes_behind_the_last_request_is_not_heard(behind, caplog):
    last = b"GET /echo?last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for request in (last, b"GET /echo?last HTTP/1.0\r\n\r\n"):
        async with running_server() as (server, echo), raw_client(server.port) as client:
            client.send(request + behind)

            assert (await client.answer()).body == b"last|"
            assert await client.is_closed()
            assert len(echo.asked) == 1
    assert not caplog.records


async def test_a_stopping_server_does_not_hear_what_comes_behind_the_answer():
    async with running_server() as (server, echo), raw_client(server.port) as client:
        client.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await echo.started.wait()
        server.stop()
        client.send(GET + GET)
        await until(lambda: any(c._queue for c in server.connections))
        echo.gate.set()

        assert (await client.answer()).body == b"slow"
        assert await client.is_closed()
        assert not echo.asked


async def test_a_target_may_be_a_whole_address():
    async with running_server() as (server, _), raw_client(server.port) as client:
        assert (
            await client.ask(b"GET http://x:1/echo?q HTTP/1.1\r\nHost: x\r\n\r\n")
        ).body == b"q|"
        assert (await client.ask(b"GET http://:::/ HTTP/1.1\r\nHost: x\r\n\r\n")).status == 400


async def test_a_head_over_its_limit_is_431():
    limits = HttpLimits(head_bytes_max=1_000)
    async with running_server(limits) as (server, _):
        for head in (
            b"GET /echo HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n",
            b"GET /echo HTTP/1.1\r\na: " + b"x" * 2_000 + b"\r\n\r\n",
            b"GET /" + b"x" * 2_000,
        ):
            async with raw_client(server.port) as client:
                assert (await client.ask(head)).status == 431
                assert await client.is_closed()


async def test_a_header_that_never_ends_is_431():
    async def dripping(send):
        while True:
            send(b"x" * 100)
            await asyncio.sleep(0)

    limits = HttpLimits(head_bytes_max=10_000)
    async with running_server(limits) as (server, _), raw_client(server.port) as client:
        client.send(b"GET /echo HTTP/1.1\r\na: ")
        drip = asyncio.create_task(dripping(client.send))
        assert (await client.answer()).status == 431
        drip.cancel()


async def test_a_long_body_does_not_count_as_head():
    limits = HttpLimits(head_bytes_max=200)
    async with running_server(limits) as (server, _), raw_client(server.port) as client:
        request = post(bytes(100_000))
        client.send(request[:30])
        await client.writer.drain()
        assert (await client.ask(request[30:])).status == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n"
        + bytes(2000),
    ],
)
async def test_a_body_over_its_limit_is_413(request_):
    limits = HttpLimits(body_bytes_max=1_000)
    async with running_server(limits) as (server, _), raw_client(server.port) as client:
        answer = await client.ask(request_)

        assert answer.status == 413
        assert "1000" in answer.json()["detail"]


async def test_trailers_do_not_reach_the_next_request():
    async with running_server() as (server, echo), raw_client(server.port) as client:
        chunked = (
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nhi\r\n0\r\nX-Evil: 1\r\n\r\n"
        )
        client.send(chunked + GET)
        assert (await client.answer()).body == b"|hi"
        await client.answer()

        names = [[name for name, _ in request.headers] for request in echo.asked]
        assert names == [[b"Host", b"Transfer-Encoding"], [b"Host"]]


async def test_what_is_not_http_is_400():
    async with running_server() as (server, _), raw_client(server.port) as client:
        answer = await client.ask(b"\x16\x03\x01 hello\r\n\r\n")

        assert answer.status == 400
        assert await client.is_closed()


async def test_a_wish_to_upgrade_is_not_heard():
    async with running_server() as (server, _), raw_client(server.port) as client:
        upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
        answer = await client.ask(b"GET /echo HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n")

        assert answer.status == 200
        assert (await client.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")).status in (400, 505)
        assert await client.is_closed()


async def test_a_bug_in_a_handler_is_500_with_an_id_and_the_server_lives(caplog):
    async with running_server() as (server, _), raw_client(server.port) as client:
        answer = await client.get("/broken")

        assert answer.status == 500
        error_id = answer.json()["detail"].split()[-1]
        assert error_id in caplog.text
        assert [repr(r.exc_info[1]) for r in caplog.records if r.exc_info] == [
            "ZeroDivisionError('planted')"
        ]
        assert (await client.get("/echo")).status == 200


async def test_too_many_connections_are_turned_away():
    async with (
        running_server(HttpLimits(connections_max=1)) as (server, _),
        raw_client(server.port) as first,
    ):
        await first.get("/echo")
        async with raw_client(server.port) as second:
            assert (await second.answer()).status == 503

        assert (await first.get("/echo")).status == 200


async def test_a_quiet_connection_is_closed_and_a_dripped_request_is_408():
    limits = HttpLimits(idle_s=5, request_s=2)
    async with (
        running_server(limits) as (server, _),
        raw_client(server.port) as quiet,
        raw_client(server.port) as loris,
    ):
        await quiet.get("/echo")
        await loris.get("/echo")
        loris.send(b"GET /ec")
        await until(lambda: any(c._is_receiving for c in server.connections))
        server.sweep()
        loris.send(b"ho")  # a byte now and then does not help
        server.sweep()
        assert (await loris.answer()).status == 408

        server.sweep()
        server.sweep()
        assert (await quiet.get("/echo")).status == 200
        for _ in range(5):
            server.sweep()
        assert await quiet.is_closed()


async def test_a_request_dripped_behind_another_is_408_too():
    async with (
        running_server(HttpLimits(request_s=2)) as (server, _),
        raw_client(server.port) as loris,
    ):
        assert (await loris.ask(GET + b"GE")).status == 200
        server.sweep()
        loris.send(b"T /ec")
        server.sweep()

        assert (await loris.answer()).status == 408


async def test_a_request_may_come_in_pieces_behind_one_that_waits():
    async with running_server() as (server, echo), raw_client(server.port) as client:
        request = post(b"behind")
        client.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" + request[:9])
        await echo.started.wait()
        server.sweep()
        client.send(request[9:])
        await until(lambda: any(c._queue for c in server.connections))
        echo.gate.set()

        assert [(await client.answer()).body for _ in range(2)] == [b"slow", b"|behind"]


async def test_an_answer_being_waited_for_does_not_time_out():
    limits = HttpLimits(idle_s=1, request_s=1)
    async with running_server(limits) as (server, echo), raw_client(server.port) as client:
        client.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await echo.started.wait()
        for _ in range(10):
            server.sweep()
        echo.gate.set()

        assert (await client.answer()).body == b"slow"


async def test_who_goes_away_is_not_answered():
    async with running_server() as (server, echo):
        async with raw_client(server.port) as client:
            client.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            await echo.started.wait()
            client.writer.transport.abort()
        await echo.cancelled.wait()

        assert not server.connections


async def test_who_goes_away_before_the_answer_is_begun_leaves_nothing_behind():
    # A coroutine nobody ends would warn, and a warning is an error here.

    async with running_server() as (server, echo):
        connection = HttpConnection(server)
        connection.connection_made(asyncio.Transport())
        connection.data_received(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.connection_lost(None)
        await asyncio.sleep(0)

        assert not echo.started.is_set()
    gc.collect()


async def test_who_half_closes_gets_what_could_be_answered_at_once():
    async with running_server() as (server, echo), raw_client(server.port) as client:
        client.send(GET + b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        client.writer.write_eof()

        assert (await client.answer()).body == b"|"
        assert await client.is_closed()
        await until(lambda: not server.connections)
        assert not echo.gate.is_set()


async def test_who_does_not_read_is_not_answered_further():
    limits = HttpLimits(request_s=3)
    async with running_server(limits) as (server, _), raw_client(server.port) as client:
        client.pause_reading()
        client.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000)
        await until(lambda: any(c._is_blocked for c in server.connections))
        (connection,) = server.connections

        # One answer more than the socket takes, not a thousand.
        assert connection._transport.get_write_buffer_size() < 16 << 20
        for _ in range(3):
            server.sweep()
        await until(lambda: not server.connections)


async def test_who_reads_late_gets_all_answers():
    async with running_server() as (server, _), raw_client(server.port) as client:
        client.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        await until(lambda: any(c._is_blocked for c in server.connections))
        for _ in range(50):
            assert len((await client.answer()).body) == 1 << 20


async def test_a_stopping_server_ends_idle_connections_and_answers_the_busy_ones():
    async with (
        running_server() as (server, echo),
        raw_client(server.port) as idle,
        raw_client(server.port) as busy,
    ):
        await idle.get("/echo")
        busy.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await echo.started.wait()
        server.stop()
        assert await idle.is_closed()
        echo.gate.set()

        answer = await busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"slow", "close")
        assert await busy.is_closed()


async def test_a_taken_port_is_one_clear_line():
    async with running_server() as (server, _):
        with pytest.raises(BadConfig, match=r"http_port: cannot listen on 127.0.0.1:\d+: "):
            async with serve_http(lambda _: problem(404, ""), host="127.0.0.1", port=server.port):
                pass


PIECES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            GET,
            post(b"body"),
            b"GET /slow HTTP/1.1\r\n\r\n",
            b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"3\r\nabc\r\n",
            b"0\r\n\r\n",
            b"Content-Length: 5\r\n",
            b"\r\n",
            b"\r\n\r\n",
            b"GET http://[::1]:x HTTP/1.1\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\n\r\n",
            b"CONNECT a:1 HTTP/1.1\r\n\r\n",
            b"Upgrade: x\r\nConnection: upgrade\r\n\r\n",
        ]
    ),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(PIECES, max_size=6), min_size=1, max_size=20), st.randoms())
async def test_no_bytes_in_any_pieces_kill_the_server(streaming_calls, dice):
    problems = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: problems.append(what))
    async with running_server(HttpLimits(head_bytes_max=500, body_bytes_max=500)) as (server, echo):
        echo.gate.set()
        for pieces in streaming_calls:
            async with raw_client(server.port) as client:
                # The server may have closed on them, and rightly so.
                with suppress(ConnectionError):
                    await converse(client, b"".join(pieces), dice)
        async with raw_client(server.port) as client:
            assert (await client.get("/echo")).status == 200
    assert problems == []


async def converse(client, data, dice):
    while data:
        cut = dice.randint(1, len(data))
        client.send(data[:cut])
        data = data[cut:]
        await asyncio.sleep(0)
    if dice.random() < 0.5 and not client.writer.is_closing():
        client.writer.write_eof()
        await client.reader.read()
