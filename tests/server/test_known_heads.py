"""Heads that came before are not parsed again, and mean what they meant."""

import pytest

from tests.server.http_client import raw_client, until
from tests.server.http_serving import guard_of, served
from waterclock.security.rights import Needs
from waterclock.server.http.counters import HttpCounters
from waterclock.server.http.known_heads import HEADS_MAX, KnownHeads, read_plain
from waterclock.server.http.messages import JSON, Request, Response
from waterclock.server.http.operations import Operation, ResponseSpec, routes_of
from waterclock.server.http.routes import Routes, answer_from
from waterclock.server.http.server import HttpLimits

LIMITS = HttpLimits()


def post(body: bytes, *headers: bytes, path: bytes = b"/echo?a=1") -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def heads() -> KnownHeads:
    return KnownHeads(LIMITS.head_bytes_max, LIMITS.body_bytes_max)


def echo_routes() -> Routes:
    def echo(request: Request) -> Response:
        return Response(200, request.query + b"|" + request.body)

    spec = {200: ResponseSpec("What was sent.")}
    table = [
        Operation(method, "/echo", echo, f"echo{method}", "Echo.", spec, Needs(None))
        for method in ("GET", "POST")
    ]
    return routes_of(table, counters=HttpCounters())


def test_a_plain_head_says_what_it_says():
    known = read_plain(b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n")

    assert known is not None
    assert (known.method, known.path, known.query) == (b"POST", b"/a", b"b=c")
    assert (known.host, known.body_bytes) == (b"x", 17)
    assert known.headers == [(b"Host", b"x"), (b"Content-Length", b"17")]


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:x\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nSec-Fetch-Site: cross-site\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: Mozilla/5.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n y: z\r\n\r\n",
        b"no HTTP\r\n\r\n",
    ],
)
def test_what_only_the_parser_can_judge_is_not_plain(head):
    assert read_plain(head) is None


def test_what_is_used_stays_and_strangers_are_forgotten():
    known = heads()
    used = b"GET /used HTTP/1.1\r\nHost: x\r\n\r\n"
    first = known.learn(used)

    for number in range(3 * HEADS_MAX):
        known.learn(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
        if used not in known.newer:
            assert known.learn(used) is first

    assert len(known) <= 2 * HEADS_MAX


def test_a_head_or_a_body_over_its_bound_is_not_known():
    known = KnownHeads(100, 10)

    assert known.learn(b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 80)) is None
    assert known.learn(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n") is None
    assert known.learn(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n") is not None


@pytest.mark.parametrize("cut", [1, 30, 55, 57])
async def test_a_known_head_is_answered_alike_whole_in_pieces_and_pipelined(cut):
    whole = post(b"body")
    async with served(echo_routes()) as server, raw_client(server.port) as client:
        for _ in range(3):
            client.send(whole)
            assert (await client.answer()).body == b"a=1|body"
        assert len(server.known_heads) == 1

        client.send(whole[:cut])
        await until(lambda: server.counters.received_bytes == 3 * len(whole) + cut)
        client.send(whole[cut:])
        assert (await client.answer()).body == b"a=1|body"

        client.send(whole + post(b"BODY") + post(b"longer"))
        bodies = [(await client.answer()).body for _ in range(3)]
        assert bodies == [b"a=1|body", b"a=1|BODY", b"a=1|longer"]


async def test_a_host_that_is_no_longer_ours_is_refused_though_its_head_is_known():
    ask = b"GET /echo HTTP/1.1\r\nHost: a.example\r\n\r\n"
    async with served(echo_routes()) as server, raw_client(server.port) as client:
        for _ in range(3):
            client.send(ask)
            assert (await client.answer()).status == 200

        server.guard.rename(["b.example"])
        client.send(ask)

        assert (await client.answer()).status == 421


async def test_other_handlers_answer_known_heads_as_soon_as_they_take_the_port():
    spec = {200: ResponseSpec("As it is now.")}

    def later(_: Request) -> Response:
        return Response(200, b"{}", JSON)

    table = [Operation("GET", "/echo", later, "later", "Answer.", spec, Needs(None))]
    ask = b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with served(echo_routes()) as server, raw_client(server.port) as client:
        for _ in range(3):
            client.send(ask)
            assert (await client.answer()).body == b"|"

        routes = routes_of(table, counters=HttpCounters())
        server.take(answer_from(routes), guard=guard_of("https://a.example"))
        for _ in range(3):  # at first its Host is not known to the new guard
            client.send(ask)
            answer = await client.answer()
            assert (answer.body, answer.headers["vary"]) == (b"{}", "Origin")
