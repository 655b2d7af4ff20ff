"""Answers in pieces: at the client's pace, ended when it goes, never cut without a sign."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.server.http_client import raw_client, until
from tests.server.http_serving import get, served
from waterclock.server.http.messages import EVENTS, Request, Response, Streamed
from waterclock.server.http.routes import Routes
from waterclock.server.http.server import HttpLimits


class Pieces:
    """Gives pieces, and remembers what became of them."""

    def __init__(self, *pieces: bytes, is_endless: bool = False) -> None:
        self.pieces = pieces
        self.is_endless = is_endless
        self.pulled = 0
        self.is_closed = False
        self.over = 0

    async def each(self) -> AsyncIterator[bytes]:
        try:
            for piece in self.pieces:
                self.pulled += 1
                yield piece
            if self.is_endless:
                await asyncio.get_running_loop().create_future()
        finally:
            self.is_closed = True

    def stream(self, _: Request) -> Streamed:
        def over() -> None:
            self.over += 1

        return Streamed(200, self.each(), EVENTS, on_over=over)

    def plain(self, _: Request) -> Response:
        return Response(200, b"plain")

    def routes(self) -> Routes:
        return {b"/pieces": {b"GET": self.stream}, b"/plain": {b"GET": self.plain}}


async def test_pieces_are_chunks_and_the_connection_goes_on():
    pieces = Pieces(b"one", b"", b"three")
    async with served(pieces.routes()) as server, raw_client(server.port) as client:
        client.send(get("/pieces") + get("/plain"))
        _, headers = await client.head()
        assert headers["transfer-encoding"] == "chunked"
        assert "content-length" not in headers
        assert [await client.chunk() for _ in range(3)] == [b"one", b"three", b""]

        assert (await client.answer()).body == b"plain"
        assert (pieces.is_closed, pieces.over) == (True, 1)


async def test_http_1_0_gets_pieces_until_the_connection_ends():
    pieces = Pieces(b"one", b"two")
    async with served(pieces.routes()) as server, raw_client(server.port) as client:
        client.send(get("/pieces", "Connection: keep-alive", version="1.0"))
        _, headers = await client.head()

        assert "transfer-encoding" not in headers
        assert headers["connection"] == "close"
        assert await client.reader.read() == b"onetwo"


async def test_head_of_pieces_has_none_of_them():
    pieces = Pieces(b"one")
    async with served(pieces.routes()) as server, raw_client(server.port) as client:
        client.send(b"HEAD /pieces HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.answer(to_head=True)

        assert (await client.ask(get("/plain"))).body == b"plain"
        assert (pieces.pulled, pieces.over) == (0, 1)


async def test_nothing_is_pulled_while_the_client_does_not_read():
    pieces = Pieces(*[bytes(1 << 20)] * 100)
    limits = HttpLimits(request_s=3)
    async with served(pieces.routes(), limits) as server, raw_client(server.port) as client:
        client.pause_reading()
        client.send(get("/pieces"))
        await until(lambda: any(c._is_blocked for c in server.connections))
        for _ in range(50):
            await asyncio.sleep(0)
        (connection,) = server.connections
        # What the kernel and the client's side took, and one piece that waits.
        assert pieces.pulled < 20
        assert connection._transport.get_write_buffer_size() <= (1 << 20) + 100

        for _ in range(3):
            server.sweep()
        await until(lambda: pieces.over)
        assert pieces.is_closed


async def test_a_slow_reader_gets_everything():
    pieces = Pieces(*[bytes(1 << 20)] * 30)
    async with served(pieces.routes()) as server, raw_client(server.port) as client:
        answer = await client.ask(get("/pieces"))

        assert len(answer.body) == 30 << 20


@pytest.mark.parametrize("leave", ["abort", "write_eof"])
async def test_who_goes_away_ends_the_pieces(leave):
    pieces = Pieces(b"one", is_endless=True)
    async with served(pieces.routes()) as server, raw_client(server.port) as client:
        client.send(get("/pieces"))
        await client.head()
        await client.chunk()
        if leave == "abort":
            client.writer.transport.abort()
        else:
            client.writer.write_eof()
        await until(lambda: pieces.over)

        assert pieces.is_closed
        await until(lambda: not server.connections)


@pytest.mark.parametrize("leave", ["abort", "write_eof"])
async def test_who_read_late_and_then_goes_ends_the_pieces(leave):
    pieces = Pieces(*[bytes(1 << 20)] * 30, is_endless=True)
    async with served(pieces.routes()) as server, raw_client(server.port) as client:
        client.pause_reading()
        client.send(get("/pieces"))
        await until(lambda: any(c._is_blocked for c in server.connections))
        client.resume_reading()
        await client.head()
        for _ in range(30):
            await client.chunk()
        if leave == "abort":
            client.writer.transport.abort()
        else:
            client.writer.write_eof()
        await until(lambda: pieces.over)


async def test_a_stopping_server_ends_pieces_with_the_last_chunk():
    pieces = Pieces(b"one", is_endless=True)
    async with served(pieces.routes()) as server, raw_client(server.port) as client:
        client.send(get("/pieces"))
        await client.head()
        assert await client.chunk() == b"one"
        server.stop()

        assert await client.chunk() == b""
        assert await client.is_closed()
        assert (pieces.is_closed, pieces.over) == (True, 1)


async def test_pieces_that_fail_are_cut_off_and_logged(caplog):
    async def failing() -> AsyncIterator[bytes]:
        yield b"one"
        raise ZeroDivisionError("planted")

    routes: Routes = {b"/": {b"GET": lambda _: Streamed(200, failing())}}
    async with served(routes) as server, raw_client(server.port) as client:
        client.send(get("/"))
        await client.head()
        assert await client.chunk() == b"one"
        # No last chunk: nobody may take a part for the whole.
        assert await client.is_closed()

    assert "ZeroDivisionError: planted" in caplog.text


async def test_garbage_behind_a_stream_ends_it():
    pieces = Pieces(b"one", is_endless=True)
    async with served(pieces.routes()) as server, raw_client(server.port) as client:
        client.send(get("/pieces"))
        await client.head()
        await client.chunk()
        client.send(b"\x00garbage\r\n\r\n")
        await until(lambda: pieces.over)


async def test_a_coroutine_may_return_pieces():
    pieces = Pieces(b"one")

    async def later(request: Request) -> Streamed:
        await asyncio.sleep(0)
        return pieces.stream(request)

    routes: Routes = {b"/later": {b"GET": later}}
    async with served(routes) as server, raw_client(server.port) as client:
        assert (await client.ask(get("/later"))).body == b"one"
