"""What one HTTP client may cost: its bytes are counted, and who has gone is noticed at once."""

import asyncio
import tracemalloc

import pytest

from tests.server.http_client import RawClient, raw_client, until
from tests.server.http_serving import get, served
from tests.server.test_http_pending import Waiting
from waterclock.server.http.connection import HttpConnection
from waterclock.server.http.messages import Request, Response
from waterclock.server.http.routes import Routes
from waterclock.server.http.server import HttpLimits, HttpServer

UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ")
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Echoing(Waiting):
    """Also says what it was sent, at once or later, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.gate = asyncio.Event()

    def echo(self, request: Request) -> Response:
        self.bodies.append(request.body)
        return Response(200, b"%b %d" % (request.method, len(request.body)))

    async def slow(self, request: Request) -> Response:
        await self.gate.wait()
        return self.echo(request)

    def routes(self) -> Routes:
        return {
            **super().routes(),
            b"/echo": {b"GET": self.echo, b"POST": self.echo},
            b"/slow": {b"POST": self.slow},
        }


def post(body: bytes, *headers: str, path: str = "/echo") -> bytes:
    lines = "".join(f"{line}\r\n" for line in (f"Content-Length: {len(body)}", *headers))
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode() + body


async def settled(server: HttpServer) -> None:
    """Let the server read what was sent."""
    for _ in range(20):
        await asyncio.sleep(0.001)


# Who has gone


@pytest.mark.parametrize("leave", ["abort", "write_eof"])
async def test_who_goes_is_seen_also_after_a_wish_to_upgrade(leave):
    waiting = Waiting()
    async with served(waiting.routes()) as server, raw_client(server.port) as client:
        client.send(get("/poll", *UPGRADE))
        await until(lambda: waiting.polls)
        if leave == "abort":
            client.writer.transport.abort()
        else:
            client.writer.write_eof()
        async with asyncio.timeout(2):
            await until(lambda: waiting.gone)


async def test_nothing_is_done_for_one_who_has_gone_with_much_in_line():
    echoing = Echoing()
    limits = HttpLimits(pipelined_max=4)
    async with served(echoing.routes(), limits) as server, raw_client(server.port) as client:
        client.send(get("/poll") + get("/echo") * 10)
        await until(lambda: echoing.polls)
        client.writer.transport.abort()
        async with asyncio.timeout(2):
            await until(lambda: not server.connections)

        assert echoing.gone == echoing.polls
        assert echoing.bodies == []


async def test_what_is_in_line_is_not_begun_on_a_closing_connection():
    echoing = Echoing()
    async with served(echoing.routes()) as server, raw_client(server.port) as client:
        client.send(get("/poll") + get("/echo"))
        await until(lambda: echoing.polls)
        (connection,) = server.connections
        await until(lambda: connection._queue)
        echoing.polls[0].answer(Response(200, b"first"))
        connection._transport.close()
        await until(lambda: not server.connections)

        assert echoing.bodies == []


async def test_too_many_in_line_are_answered_and_what_follows_is_429():
    waiting = Waiting()
    limits = HttpLimits(pipelined_max=4)
    async with served(waiting.routes(), limits) as server, raw_client(server.port) as client:
        client.send(get("/poll") + get("/plain") * 4)
        await until(lambda: any(c._queue for c in server.connections))
        client.send(get("/plain"))
        await settled(server)
        waiting.polls[0].answer(Response(200, b"first"))
        bodies = [(await client.answer()).body for _ in range(5)]
        last = await client.answer()

        assert bodies == [b"first"] + [b"plain"] * 4
        assert (last.status, last.json()["limit"]) == (429, 4)
        assert await client.is_closed()


async def test_garbage_behind_a_poll_is_told_after_the_answer():
    waiting = Waiting()
    async with served(waiting.routes()) as server, raw_client(server.port) as client:
        client.send(get("/poll") + get("/plain"))
        await until(lambda: waiting.polls)
        client.send(b"\x00garbage\r\n\r\n")
        await settled(server)
        assert not waiting.gone
        waiting.polls[0].answer(Response(200, b"first"))

        answers = [await client.answer() for _ in range(3)]
        assert [one.status for one in answers] == [200, 200, 400]
        assert [one.body for one in answers[:2]] == [b"first", b"plain"]
        assert await client.is_closed()


# Upgrades


async def test_a_body_comes_through_a_wish_to_upgrade():
    echoing = Echoing()
    async with served(echoing.routes()) as server, raw_client(server.port) as client:
        first = await client.ask(post(b"hello", *UPGRADE))
        client.send(CHUNKED[:-2] + "\r\n".join(UPGRADE).encode() + b"\r\n\r\n3\r\nabc\r\n")
        await settled(server)
        second = await client.ask(b"0\r\n\r\n")
        both = post(b"1", *UPGRADE) + post(b"2", *UPGRADE)
        client.send(both)
        rest = [await client.answer() for _ in range(2)]

        assert [one.body for one in (first, second, *rest)] == [
            b"POST 5", b"POST 3", b"POST 1", b"POST 1",
        ]  # fmt: skip
        assert echoing.bodies == [b"hello", b"abc", b"1", b"2"]


async def test_a_thousand_wishes_to_upgrade_in_one_piece_are_answered():
    echoing = Echoing()
    async with served(echoing.routes()) as server, raw_client(server.port) as client:
        client.send(get("/echo", *UPGRADE) * 2_000)
        for _ in range(2_000):
            assert (await client.answer()).status == 200


async def test_connect_ends_the_connection():
    async with served(Echoing().routes()) as server, raw_client(server.port) as client:
        client.send(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + get("/echo"))

        assert (await client.answer()).status == 404
        assert await client.is_closed()


# Heads


async def test_pipelined_requests_do_not_count_as_one_head():
    limits = HttpLimits(head_bytes_max=1_000)
    async with served(Echoing().routes(), limits) as server, raw_client(server.port) as client:
        requests = get("/echo") * 400
        for at in range(0, len(requests), 1_500):
            client.send(requests[at : at + 1_500])
            await settled(server)
        for _ in range(400):
            assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "head",
    [
        "GET /echo HTTP/1.1\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /echo HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
)
async def test_a_request_names_one_host(head):
    async with served(Echoing().routes()) as server, raw_client(server.port) as client:
        answer = await client.ask(head.encode())

        assert answer.status == 400
        assert "Host" in answer.json()["detail"]
        assert await client.is_closed()


@pytest.mark.parametrize("version", ["2.0", "0.9"])
async def test_another_version_of_http_is_505(version):
    async with served(Echoing().routes()) as server, raw_client(server.port) as client:
        answer = await client.ask(get("/echo", "Connection: keep-alive", version=version))

        assert answer.status == 505


async def test_an_unknown_transfer_coding_is_501():
    async with served(Echoing().routes()) as server, raw_client(server.port) as client:
        coded = CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n"

        assert (await client.ask(coded)).status == 501
        assert await client.is_closed()


@pytest.mark.parametrize("drip", [b"a", b"a" * 5_000])
async def test_a_trailer_that_never_ends_is_431(drip):
    limits = HttpLimits(head_bytes_max=10_000)
    async with served(Echoing().routes(), limits) as server, raw_client(server.port) as client:
        client.send(CHUNKED + b"3\r\nabc\r\n0\r\nX-T: ")

        async def dripping() -> None:
            while True:
                client.send(drip)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(dripping())
        async with asyncio.timeout(10):
            assert (await client.answer()).status == 431
        task.cancel()


async def test_trailers_count_as_head_and_large_chunks_do_not():
    limits = HttpLimits(head_bytes_max=1_000)
    async with served(Echoing().routes(), limits) as server:
        async with raw_client(server.port) as client:
            client.send(CHUNKED + b"%x\r\n" % 300_000)
            for _ in range(300):
                client.send(bytes(1_000))
                await asyncio.sleep(0)
            assert (await client.ask(b"\r\n0\r\n\r\n")).body == b"POST 300000"
        async with raw_client(server.port) as client:
            client.send(CHUNKED + b"0\r\n" + b"X: 3456\r\n" * 500 + b"\r\n")
            assert (await client.answer()).status == 431


async def test_a_chunk_may_come_with_the_head_of_the_next_however_large():
    limits = HttpLimits(head_bytes_max=1_000)
    async with served(Echoing().routes(), limits) as server:
        connection = HttpConnection(server)
        transport = SlowTransport()
        connection.connection_made(transport)
        connection.data_received(CHUNKED + b"5dc\r\n")
        for _ in range(10):
            connection.data_received(bytes(1_500) + b"\r\n5dc\r\n")
        connection.data_received(bytes(1_500) + b"\r\n0\r\n\r\n")

        assert transport.written.endswith(b"POST 16500")


async def test_who_expects_to_continue_behind_the_last_request_is_not_told_to():
    async with served(Echoing().routes()) as server, raw_client(server.port) as client:
        last = get("/echo", "Connection: close")
        client.send(last + post(b"abc", "Expect: 100-continue")[:-3])

        assert (await client.answer()).status == 200
        assert await client.is_closed()


# Bodies


async def poll_then(client: RawClient, waiting: Waiting) -> None:
    client.send(get("/poll"))
    await until(lambda: waiting.polls)


async def test_bodies_behind_a_poll_are_bounded_by_their_bytes():
    echoing = Echoing()
    limits = HttpLimits(body_bytes_max=100_000)
    async with served(echoing.routes(), limits) as server, raw_client(server.port) as client:
        await poll_then(client, echoing)
        for _ in range(5):
            client.send(post(bytes(60_000)))
        await settled(server)
        (connection,) = server.connections
        assert connection._queue is not None
        assert len(connection._queue) == 1
        echoing.polls[0].answer(Response(200, b"first"))
        answers = [await client.answer() for _ in range(3)]

        assert [one.status for one in answers] == [200, 200, 429]
        assert server.bodies.held == 0


async def test_bodies_of_all_connections_share_one_bound():
    echoing = Echoing()
    limits = HttpLimits(body_bytes_max=100_000, bodies_bytes_max=150_000)
    async with served(echoing.routes(), limits) as server:
        async with raw_client(server.port) as one, raw_client(server.port) as other:
            one.send(post(bytes(90_000), path="/slow"))
            await until(lambda: server.bodies.held == 90_000)
            refused = await other.ask(post(bytes(90_000)))
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"] == "Overloaded"
            assert await other.is_closed()
            echoing.gate.set()
            assert (await one.answer()).body == b"POST 90000"
            assert (await one.ask(post(bytes(90_000)))).status == 200
            assert server.bodies.held == 0
            one.send(post(bytes(90_000))[:80_000])
            await until(lambda: server.bodies.held > 70_000)
        await until(lambda: not server.connections)
        assert server.bodies.held == 0


async def test_requests_in_line_count_too_and_are_let_go_with_their_client():
    echoing = Echoing()
    async with served(echoing.routes()) as server, raw_client(server.port) as client:
        await poll_then(client, echoing)
        client.send(get("/plain") * 10 + post(bytes(90_000)))
        (connection,) = server.connections
        await until(lambda: connection._queue and len(connection._queue) == 11)
        assert server.bodies.held > 100_000
        client.writer.transport.abort()
        await until(lambda: not server.connections)

        assert server.bodies.held == 0


async def test_a_body_in_tiny_chunks_takes_no_more_than_itself():
    echoing = Echoing()
    async with served(echoing.routes()) as server, raw_client(server.port) as client:
        client.send(CHUNKED)
        await settled(server)
        tracemalloc.start()
        for _ in range(20):
            client.send(b"2\r\nxx\r\n" * 5_000)
            await client.writer.drain()
        (connection,) = server.connections
        await until(lambda: connection._body_bytes == 200_000)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert kept < 2_000_000
        assert (await client.ask(b"0\r\n\r\n")).body == b"POST 200000"


# Slow readers


class SlowTransport(asyncio.Transport):
    """Sends as slowly as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.written = b""
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unsent = 1_000_000
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
async def test_who_reads_slowly_keeps_its_answer_and_who_does_not_read_loses_it(headers):
    async with served(Waiting().routes(), HttpLimits(request_s=3)) as server:
        transport = SlowTransport()
        connection = HttpConnection(server)
        connection.connection_made(transport)
        connection.data_received(get("/plain", *headers))
        connection.pause_writing()
        for _ in range(20):
            transport.unsent -= 1
            server.sweep()
            server.sweep()
            assert not transport.is_aborted
        for _ in range(3):
            server.sweep()
        assert transport.is_aborted
