"""HTTP as the client speaks it: whole answers or none, and connections that are safe to reuse."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.http_peers import END, Said, Scripted, ok, scripted
from tests.kit.examples import examples
from tests.server.http_client import until
from waterclock.client.errors import NotConnected
from waterclock.client.streams import http_pool, http_wire
from waterclock.client.streams.http_pool import HttpPool
from waterclock.client.streams.http_request import ConnectionBroken, HttpRequest
from waterclock.client.streams.http_wire import HttpConnection
from waterclock.model.errors import BadInput, Closed, Overloaded, TimedOut

GET = HttpRequest("GET", "/x")
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;ext=1\r\n!\r\n0\r\nTrailer: x\r\n\r\n"
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"hello!")[0]
NEVER: list[bytes] = []


@asynccontextmanager
async def pool_of(
    answers: Callable[[int], Said], *, connections_max: int = 10
) -> AsyncIterator[tuple[Scripted, HttpPool]]:
    async with scripted(answers) as peer:
        pool = HttpPool(peer.url, connections_max=connections_max)
        try:
            yield peer, pool
        finally:
            pool.close()


async def ask(pool: HttpPool, request: HttpRequest = GET, timeout_s: float = 20) -> bytes:
    return (await pool.ask(request, timeout_s=timeout_s)).body


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True


class TlsWire(Wire):
    """One that reads on when it is closed, as asyncio's TLS does."""

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__()
        self._connection = connection

    def close(self) -> None:
        self._connection.eof_received()


async def test_an_answer_that_ends_the_connection_is_heard_over_tls_too():
    connection = HttpConnection(lambda _: None)
    connection.connection_made(TlsWire(connection))
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(connection.ask(b"GET / HTTP/1.1\r\n\r\n"))
        await asyncio.sleep(0)
        connection.data_received(
            b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"
        )

    assert (asking.result().status, asking.result().body) == (401, b"no")
    assert not connection.is_usable


@settings(max_examples=examples(200))
@given(
    text=st.sampled_from([CHUNKED, CONTINUED, ok(b"hello!")[0]]),
    cuts=st.lists(st.integers(1, 90), max_size=8),
)
async def test_an_answer_is_read_however_it_is_cut_into_pieces(text, cuts):
    connection = HttpConnection(lambda _: None)
    connection.connection_made(Wire())
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(connection.ask(b"..."))
        await asyncio.sleep(0)
        edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
        for start, end in pairwise(edges):
            connection.data_received(text[start:end])
    assert (asking.result().status, asking.result().body) == (200, b"hello!")
    assert connection.is_usable


async def test_one_connection_serves_one_request_after_the_other():
    async with pool_of(lambda n: ok(b"%d" % n)) as (peer, pool):
        body = HttpRequest("POST", "/y", {"a": "b c/ü", "n": 1}, b"{}")

        assert [await ask(pool), await ask(pool, body), await ask(pool)] == [b"0", b"1", b"2"]
        assert peer.connections == 1
        assert peer.requests[0].startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")
        assert peer.requests[1].startswith(b"POST /y?a=b+c%2F%C3%BC&n=1 HTTP/1.1\r\n")
        assert peer.requests[1].endswith(b"Content-Length: 2\r\n\r\n{}")


async def test_requests_at_once_have_connections_of_their_own_and_share_them_later():
    async with pool_of(lambda n: ok(b"%d" % n)) as (peer, pool):
        await asyncio.gather(*(ask(pool) for _ in range(5)))
        await asyncio.gather(*(ask(pool) for _ in range(5)))

        assert peer.connections == len(pool) == pool.idle == 5


async def test_there_are_never_more_connections_than_allowed():
    async with pool_of(lambda n: ok(b"x"), connections_max=3) as (peer, pool):
        await asyncio.gather(*(ask(pool) for _ in range(50)))

        assert len(peer.requests) == 50
        assert peer.connections <= 3


async def test_polls_do_not_keep_others_away_and_what_finds_no_place_is_told():
    poll = HttpRequest("GET", "/poll", is_poll=True)
    async with (
        pool_of(lambda n: NEVER if n < 2 else ok(b"sent"), connections_max=2) as (peer, pool),
        asyncio.TaskGroup() as tasks,
    ):
        polls = [tasks.create_task(ask(pool, poll)) for _ in range(2)]
        await until(lambda: len(peer.requests) == 2)

        with pytest.raises(Overloaded) as full:
            await ask(pool, poll, timeout_s=0.01)
        assert (full.value.field, full.value.limit) == ("requests about streams", 2)
        assert await ask(pool) == b"sent"
        for each in polls:
            each.cancel()


@pytest.mark.parametrize(
    ("said", "connections"),
    [
        ([END], 3),  # of which one asks whether this is TLS
        ([b"HTTP/1.1 200 OK\r\nContent-Le", END], 2),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", END], 2),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", END], 2),
        ([b"\x16\x03\x01 this is TLS"], 2),
    ],
)
async def test_an_answer_that_does_not_come_whole_is_none(said, connections):
    async with pool_of(lambda n: ok(b"next") if n else said) as (peer, pool):
        with pytest.raises(ConnectionBroken, match=peer.url):
            await ask(pool)
        assert await ask(pool) == b"next"
        assert peer.connections == connections


async def test_a_connection_the_other_side_ends_with_its_answer_is_not_used_again():
    async with pool_of(lambda n: ok(b"%d" % n, b"Connection: close\r\n")) as (peer, pool):
        assert [await ask(pool), await ask(pool)] == [b"0", b"1"]
        assert peer.connections == 2
        assert pool.idle == 0


async def test_what_comes_unasked_ends_the_connection():
    twice = [ok(b"mine")[0] + ok(b"stray")[0]]
    async with pool_of(lambda n: twice if n == 0 else ok(b"next")) as (peer, pool):
        assert await ask(pool) == b"mine"
        assert await ask(pool) == b"next"
        assert peer.connections == 2


async def test_who_is_cancelled_or_too_late_leaves_no_answer_to_the_next():
    peers: list[Scripted] = []

    def answers(number: int) -> Said:
        return ok(b"mine") if b"/mine" in peers[0].requests[number] else NEVER

    async with pool_of(answers) as (peer, pool), asyncio.TaskGroup() as tasks:
        peers.append(peer)
        asking = tasks.create_task(ask(pool))
        await until(lambda: len(peer.requests) == 1)
        asking.cancel()
        with pytest.raises((TimedOut, NotConnected)):
            await ask(pool, timeout_s=0.2)

        assert await ask(pool, HttpRequest("GET", "/mine")) == b"mine"
        await until(lambda: peer.open == len(pool) == 1)


@pytest.mark.parametrize(
    ("said", "body"),
    [
        ([b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo!", END], b"hello!"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", END], b""),
        ([b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello!", END], b"hello!"),
        ([b"HTTP/1.0 200 OK\r\n\r\nhello!", END], b"hello!"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello!", END], None),
        ([CHUNKED[:-20], END], None),
        ([b"HTTP/1.1 200 OK\r\n", END], None),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", END], None),
    ],
)
async def test_an_answer_of_unknown_length_ends_with_its_connection(said, body):
    async with pool_of(lambda n: said) as (_, pool):
        if body is None:
            with pytest.raises(ConnectionBroken):
                await ask(pool)
        else:
            assert await ask(pool) == body
        assert pool.idle == 0


async def test_a_place_is_free_again_whatever_happened():
    async with pool_of(lambda n: [END] if n % 2 else ok(b"x"), connections_max=1) as (_, pool):
        for _ in range(5):
            assert await ask(pool) == b"x"
            with pytest.raises(ConnectionBroken):
                await ask(pool)


async def test_a_connection_that_was_idle_for_long_or_closed_is_not_used(monkeypatch):
    async with pool_of(lambda n: ok(b"%d" % n)) as (peer, pool):
        await ask(pool)
        monkeypatch.setattr(http_pool, "IDLE_S", -1.0)
        assert await ask(pool) == b"1"
        monkeypatch.setattr(http_pool, "IDLE_S", 30.0)
        for connection in [*pool._all]:
            connection.eof_received()
        assert await ask(pool) == b"2"
        assert peer.connections == 3


async def test_nobody_there_is_told_apart_from_a_lost_answer():
    async with scripted(lambda n: NEVER) as peer:
        pool = HttpPool(peer.url, connections_max=1)
    with pytest.raises(NotConnected, match="waterclock up"):
        await ask(pool)


async def test_closing_ends_those_who_wait_and_those_who_come():
    async def closed(pool: HttpPool) -> bool:
        with pytest.raises(Closed):
            await ask(pool)
        return True

    async with (
        pool_of(lambda n: NEVER) as (peer, pool),
        asyncio.TaskGroup() as tasks,
    ):
        asking = tasks.create_task(closed(pool))
        await until(lambda: peer.requests)
        pool.close()
        assert await asking
        assert await closed(pool)
        await until(lambda: len(pool) == 0)


async def test_too_much_is_not_kept(monkeypatch):
    monkeypatch.setattr(http_wire, "ANSWER_BYTES_MAX", 1_000)
    monkeypatch.setattr(http_wire, "HEAD_BYTES_MAX", 1_000)
    endless = [b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n" * 50] * 10]
    async with pool_of(lambda n: endless if n else ok(b"x" * 1_001)) as (_, pool):
        with pytest.raises(ConnectionBroken, match="1000 bytes"):
            await ask(pool)
        with pytest.raises(ConnectionBroken, match="1000 bytes"):
            await ask(pool)


@pytest.mark.parametrize(
    "url", ["https://x", "x:80", "http://", "http://u@x", "http://x:y", "http://x/?q", "ftp://x"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(BadInput, match="http://host:port"):
        HttpPool(url, connections_max=1)


async def test_an_address_may_have_a_path():
    async with scripted(lambda n: ok(b"x")) as peer:
        pool = HttpPool(f"{peer.url}/a%20b/", connections_max=1)
        await ask(pool)
        pool.close()
        assert peer.requests[0].startswith(b"GET /a%20b/x HTTP/1.1\r\n")
