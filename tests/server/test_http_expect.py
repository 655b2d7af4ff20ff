"""`Expect: 100-continue`: the client is told to go on, in its turn, or refused at once."""

import pytest

from tests.server.http_client import raw_client, until
from tests.server.http_serving import get, served
from waterclock.server.http.messages import Pending, Request, Response
from waterclock.server.http.routes import Routes
from waterclock.server.http.server import HttpLimits


def echo(request: Request) -> Response:
    return Response(200, request.body)


ROUTES: Routes = {b"/echo": {b"GET": echo, b"POST": echo}}


def post(size: int, *, expect: str = "100-continue", version: str = "1.1") -> bytes:
    headers = f"Host: x\r\nExpect: {expect}\r\nContent-Length: {size}\r\n"
    return f"POST /echo HTTP/{version}\r\n{headers}\r\n".encode()


async def test_the_client_is_told_to_go_on():
    async with served(ROUTES) as server, raw_client(server.port) as client:
        client.send(post(5))
        assert await client.head() == (100, {})
        assert (await client.ask(b"hello")).body == b"hello"
        assert (await client.get("/echo")).status == 200


async def test_who_does_not_wait_is_not_told():
    async with served(ROUTES) as server, raw_client(server.port) as client:
        client.send(post(5) + b"hello")
        first, _ = await client.head()
        # The head was whole before the body was seen: telling is allowed, answering a must.
        answer = await client.answer() if first == 100 else None
        assert answer is None or answer.body == b"hello"


async def test_a_body_that_would_be_too_large_is_refused_before_it_is_sent():
    limits = HttpLimits(body_bytes_max=1_000)
    async with served(ROUTES, limits) as server, raw_client(server.port) as client:
        answer = await client.ask(post(1_001))

        assert (answer.status, answer.json()["limit"]) == (413, 1_000)
        assert await client.is_closed()


@pytest.mark.parametrize("expect", ["200-ok", "100-continue, x"])
async def test_what_cannot_be_met_is_417(expect):
    async with served(ROUTES) as server, raw_client(server.port) as client:
        assert (await client.ask(post(5, expect=expect))).status == 417


async def test_http_1_0_is_not_told():
    async with served(ROUTES) as server, raw_client(server.port) as client:
        client.send(post(5, version="1.0"))
        assert (await client.ask(b"hello")).body == b"hello"


async def test_the_turn_comes_after_what_was_asked_before():
    polls: list[Pending] = []

    def poll(_: Request) -> Pending:
        polls.append(Pending())
        return polls[-1]

    routes: Routes = {**ROUTES, b"/poll": {b"GET": poll}}
    async with served(routes) as server, raw_client(server.port) as client:
        client.send(get("/poll") + post(5))
        await until(lambda: polls)
        polls[0].answer(Response(200, b"first"))

        assert (await client.answer()).body == b"first"
        assert await client.head() == (100, {})
        assert (await client.ask(b"hello")).body == b"hello"
