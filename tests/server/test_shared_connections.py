"""Connections go to the process that answers them, and nothing of what was asked is lost."""

import asyncio
import errno
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest

from tests.server.http_client import RawClient, raw_client, until
from waterclock.server.cluster.processes import connections
from waterclock.server.cluster.processes.connections import (
    FORWARDED_MIN,
    MOVES_MAX,
    SharedConnections,
    shared_connections,
)
from waterclock.server.http.connection import HttpConnection
from waterclock.server.http.messages import Pending, Request, Response
from waterclock.server.http.server import HttpServer, serve_http

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no abstract names")

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
WAIT = b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANOTHER_USER = os.geteuid() + 1
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"


class Process:
    """Answers with its name, and with the body that came; a wait, when it is told to."""

    server: HttpServer
    shared: SharedConnections

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: list[Pending] = []

    def answer(self, request: Request) -> Response | Pending:
        if request.path == b"/wait":
            self.waiting.append(Pending())
            return self.waiting[-1]
        return self.response(request.body)

    def response(self, body: bytes = b"") -> Response:
        return Response(200, b"%b %b" % (self.name.encode(), body))

    @property
    def connection(self) -> HttpConnection:
        (found,) = self.server.connections
        return found

    def forward(self, times: int = FORWARDED_MIN) -> None:
        """Have it seem that another process answered what came."""
        for _ in range(times):
            self.shared.was_forwarded(self.connection, "other")


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Process, Process]]:
    found = Process("one"), Process("other")
    async with AsyncExitStack() as stack:
        for each in found:
            listening = serve_http(each.answer, host="127.0.0.1", port=0)
            each.server = await stack.enter_async_context(listening)
            address = f"test-{found[0].server.port}"
            each.shared = SharedConnections(each.server, address, each.name)
            stack.callback(each.shared.close)
        yield found


@asynccontextmanager
async def connected(process: Process, *, moves: int = 0) -> AsyncIterator[RawClient]:
    async with raw_client(process.server.port) as client:
        assert (await client.ask(GET)).body == b"one "
        process.connection.moves = moves
        yield client


async def test_what_comes_next_is_answered_by_the_process_that_answered_before():
    async with two() as (one, other), connected(one) as client:
        one.forward()

        assert (await client.ask(POST)).body == b"other hello"
        assert (await client.ask(GET)).body == b"other "
        assert not one.server.connections
        assert (one.shared.handed, other.shared.taken) == (1, 1)
        assert one.server.counters.connections == 0
        assert other.server.counters.connections == 1


async def test_requests_that_come_together_go_together():
    async with two() as (one, _), connected(one) as client:
        one.forward()
        client.send(POST + GET + POST)

        answers = [(await client.answer()).body for _ in range(3)]
        assert answers == [b"other hello", b"other ", b"other hello"]


async def test_a_request_of_which_half_has_come_goes_with_that_half():
    async with two() as (one, other), connected(one) as client:
        one.forward()
        client.send(POST[:50])
        await until(lambda: other.server.connections)

        assert (await client.ask(POST[50:])).body == b"other hello"


async def test_a_request_that_is_half_read_is_answered_where_it_began():
    async with two() as (one, _), connected(one) as client:
        client.send(POST[:50])
        await until(lambda: one.connection._is_receiving)
        one.forward()

        assert (await client.ask(POST[50:])).body == b"one hello"


async def test_a_connection_on_which_something_waits_stays_until_it_is_answered():
    async with two() as (one, _), connected(one) as client:
        client.send(WAIT)
        await until(lambda: one.waiting)
        one.forward()
        client.send(POST)
        await until(lambda: one.connection._queue)
        one.waiting[0].answer(one.response(b"waited"))

        assert (await client.answer()).body == b"one waited"
        assert (await client.answer()).body == b"one hello"
        one.forward(1)
        assert (await client.ask(GET)).body == b"other "


async def test_a_connection_stays_if_the_other_process_is_gone():
    async with two() as (one, other), connected(one) as client:
        other.shared.close()
        one.forward()
        assert (await client.ask(GET)).body == b"one "
        assert (await client.ask(POST)).body == b"one hello"


async def test_a_process_that_is_back_is_found_again():
    async with two() as (one, other):
        async with connected(one) as client:
            one.forward()
            assert (await client.ask(GET)).body == b"other "
        other.shared.close()
        other.shared = SharedConnections(other.server, f"test-{one.server.port}", "other")
        async with connected(one) as client:
            one.forward()
            assert (await client.ask(GET)).body == b"one "  # finds that the link is broken
            one.forward(1)
            assert (await client.ask(GET)).body == b"other "
        other.shared.close()


async def test_a_process_that_takes_no_more_takes_what_was_handed_to_it():
    async with two() as (one, other), connected(one) as client:
        one.forward()
        client.send(GET)
        await until(lambda: one.shared.handed)
        other.shared.close()

        assert (await client.answer()).body == b"other "


async def test_a_connection_of_a_port_that_is_not_shared_stays():
    async with two() as (one, _), connected(one, moves=-1) as client:
        one.forward(1_000)
        assert (await client.ask(GET)).body == b"one "


async def test_each_time_it_was_handed_a_connection_must_be_worth_more():
    async with two() as (one, other), connected(one, moves=2) as client:
        one.forward(FORWARDED_MIN * 16 - 1)
        assert (await client.ask(GET)).body == b"one "
        one.forward(1)
        assert (await client.ask(GET)).body == b"other "
        assert other.connection.moves == 3


async def test_a_connection_that_went_back_and_forth_stays():
    async with two() as (one, _), connected(one, moves=MOVES_MAX) as client:
        one.forward(100)
        assert (await client.ask(GET)).body == b"one "
        assert one.connection.forwarded == 0


async def test_a_client_that_hangs_up_before_it_is_handed_is_let_go():
    async with two() as (one, _):
        async with connected(one) as client:
            one.forward()
            client.writer.write_eof()
            await until(lambda: not one.server.connections)
            assert await client.is_closed()
        assert one.shared.handed == 0
        await asyncio.sleep(0)


async def test_a_process_of_another_user_is_handed_nothing(monkeypatch):
    async with two() as (one, other), connected(one) as client:
        one.forward()
        with monkeypatch.context() as patched:
            patched.setattr(os, "geteuid", lambda: ANOTHER_USER)
            assert (await client.ask(GET)).body == b"one "

        assert one.shared.handed == other.shared.taken == 0
        one.forward(1)
        assert (await client.ask(GET)).body == b"other "


async def test_nothing_is_taken_of_another_user(monkeypatch):
    async with two() as (one, other), raw_client(one.server.port) as client:
        assert (await client.ask(GET)).body == b"one "
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER_USER)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.setblocking(False)
            stranger.connect(other.shared._path("other"))
            socket.send_fds(stranger, [b"\1" + GET], [one.connection.descriptor])
            loop = asyncio.get_running_loop()
            with pytest.raises(ConnectionResetError):  # hung up on, with what it said unread
                await loop.sock_recv(stranger, 1)

        assert other.shared.taken == 0
        assert not other.server.connections


async def test_a_process_whose_name_another_program_has_starts_and_keeps_its_connections(caplog):
    async with two() as (one, _), connected(one) as client:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as another:
            another.bind(one.shared._path("taken"))

            assert shared_connections(one.server, one.shared._address, "taken") is None

        assert "connections_stay name=taken" in caplog.text
        assert (await client.ask(GET)).body == b"one "


async def test_a_process_without_a_descriptor_for_another_takes_what_it_was_handed_later(
    monkeypatch, caplog
):
    accept, refused = socket.socket.accept, [OSError(errno.EMFILE, "too many open files")]

    def accepted(listener: socket.socket) -> Any:
        if refused:
            raise refused.pop()
        return accept(listener)

    monkeypatch.setattr(connections, "PAUSE_S", 0)
    monkeypatch.setattr(socket.socket, "accept", accepted)
    async with two() as (one, _), connected(one) as client:
        one.forward()

        assert (await client.ask(POST)).body == b"other hello"
    assert "too many open files" in caplog.text


@contextmanager
def no_descriptor_free() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_connection_for_which_no_descriptor_is_free_is_taken_when_one_is(
    monkeypatch, caplog
):
    monkeypatch.setattr(connections, "PAUSE_S", 0)
    async with two() as (one, other), connected(one) as before:
        one.forward()
        await before.ask(GET)
        async with connected(one) as client:
            one.forward()
            with no_descriptor_free():
                client.send(POST)
                await until(lambda: "wait" in caplog.text or not other.shared._heard)
                assert other.shared.taken == 1

            assert (await client.answer()).body == b"other hello"
            assert (await before.ask(GET)).body == b"other "
    assert "lost" not in caplog.text


async def test_what_comes_without_a_descriptor_costs_no_others(caplog):
    async with two() as (one, other), connected(one) as before:
        one.forward()
        await before.ask(GET)
        link = one.shared._links["other"]
        link.send(b"\1" + GET)
        async with connected(one) as client:
            one.forward()

            assert (await client.ask(POST)).body == b"other hello"
        assert one.shared._links["other"] is link
        assert other.shared.taken == 2
    assert caplog.text.count("handed_connection_lost") == 1


async def test_a_connection_that_was_handed_is_for_no_program_that_the_process_starts():
    async with two() as (one, other), connected(one) as client:
        one.forward()
        await client.ask(GET)

        assert not os.get_inheritable(other.connection.descriptor)


async def test_a_process_that_ends_before_it_reads_costs_the_connections_handed_to_it():
    async with two() as (one, _), connected(one) as client:
        ending = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ending:
            ending.bind(one.shared._path("ending"))
            ending.listen()
            for _ in range(FORWARDED_MIN):
                one.shared.was_forwarded(one.connection, "ending")
            client.send(POST)
            await until(lambda: one.shared.handed)
            assert not one.server.connections

        assert await client.is_closed()
        async with connected(one) as again:
            for _ in range(FORWARDED_MIN):
                one.shared.was_forwarded(one.connection, "ending")
            assert (await again.ask(POST)).body == b"one hello"
