"""What HTTP and gRPC count of requests, connections and bytes."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import waterclock.server.http
from tests.server.http_client import raw_client, until
from tests.server.http_serving import get, served
from tests.server.members import Member
from tests.server.served import running_server
from tests.server.test_http_pending import Waiting
from tests.server.test_metrics import Samples, scrape, value
from waterclock.node.counters import MILLISECONDS
from waterclock.server.http.counters import REASONS, RequestCounters
from waterclock.server.http.messages import Request, Response, Streamed
from waterclock.server.http.server import HttpLimits

HTTP = Path(waterclock.server.http.__file__).parent


def requests(samples: Samples) -> dict[tuple[str, str, str], float]:
    """Return what was answered, by operation, method and status."""
    found = {}
    for (name, labels), count in samples.items():
        if name == "waterclock_http_requests_total":
            said = dict(labels)
            found[said["operation"], said["method"], said["status"]] = count
    return found


async def test_requests_count_by_operation_and_status_and_never_by_path(tmp_path):
    async with running_server(tmp_path) as it:
        async with raw_client(it.server.http_port) as client:
            await client.post("/topics", {"topic": "orders"})
            await client.post("/topics", {"topic": "orders"})
            await client.get("/api/v1/topics/orders")
            client.send(get("/topics/orders").replace(b"GET", b"HEAD"))
            await client.answer(to_head=True)
            for path in ("/topics/nobody", "/nothing", "/nothing/else"):
                await client.get(path)
            await client.post("/topics/orders", None, method="PATCH")
            await client.post("/topics/orders", None, method="POST")
        async with raw_client(it.server.http_port) as client:
            client.send(b"this is no HTTP\r\n\r\n")
            await client.answer()
        await until(lambda: it.server._http.counters.connections == 0)
        samples = await scrape(it)

        assert requests(samples) == {
            ("createTopic", "POST", "201"): 1,
            ("createTopic", "POST", "409"): 1,
            ("getTopic", "GET", "200"): 1,
            ("getTopic", "GET", "404"): 1,
            ("getTopic", "HEAD", "200"): 1,
            ("updateTopic", "PATCH", "400"): 1,
            ("(none)", "(any)", "404"): 2,
            ("(none)", "(any)", "405"): 1,
            ("(none)", "(any)", "400"): 1,
        }
        assert value(samples, "http_request_seconds_count", operation="getTopic") == 3
        assert value(samples, "http_refused_total", reason="malformed") == 1
        assert value(samples, "http_refused_total", reason="slow_reader") == 0
        assert value(samples, "http_connections") == 1
        assert value(samples, "http_connections_opened_total") == 3
        assert value(samples, "http_received_bytes_total") > 500
        assert value(samples, "http_sent_bytes_total") > 2_000


async def test_streams_of_grpc_are_counted_while_they_are_open(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        member = Member(it)
        await member.open()
        await member.delivery()
        samples = await scrape(it)

        assert value(samples, "grpc_streaming_calls", method="Broker/Subscribe") == 1
        assert value(samples, "grpc_streaming_calls", method="Broker/PublishStream") == 0
        await member.say(leave=True)
        await member.ended()
        await until(lambda: not it.server.calls.methods["Broker/Subscribe"].streaming)


async def test_an_answer_that_comes_later_counts_when_it_comes_and_one_nobody_waits_for_does_not():
    waiting = Waiting()
    async with served(waiting.routes()) as server:
        counters = server.counters
        async with raw_client(server.port) as client, raw_client(server.port) as other:
            client.send(get("/poll"))
            other.send(get("/poll"))
            await until(lambda: len(waiting.polls) == 2)
            assert counters.unmatched.statuses() == {}
            other.writer.transport.abort()
            await until(lambda: counters.connections == 1)
            for poll in waiting.polls:
                poll.answer(Response(201))
            await client.answer()

        assert counters.unmatched.statuses() == {201: 1}
        assert counters.abandoned_requests == 1


async def test_pieces_count_as_one_answer_and_with_all_their_bytes():
    async def pieces() -> AsyncIterator[bytes]:
        assert server.counters.streaming == 1
        for _ in range(3):
            yield bytes(1_000)

    def answer(_: Request) -> Streamed:
        return Streamed(200, pieces())

    async with served({b"/": {b"GET": answer}}) as server, raw_client(server.port) as client:
        await client.ask(get("/"))
        await until(lambda: not server.counters.streaming)

        assert server.counters.unmatched.statuses() == {200: 1}
        assert 3_000 < server.counters.sent_bytes < 3_500


async def test_who_is_one_too_many_is_refused_for_that():
    limits = HttpLimits(connections_max=1)
    async with served({}, limits) as server, raw_client(server.port) as client:
        await client.ask(get("/"))
        async with raw_client(server.port) as other:
            assert (await other.answer()).status == 503

        assert {status: n for status, n in server.counters.refused.items() if n} == {503: 1}


def test_every_refusal_has_a_reason():
    sources = [(HTTP / f"{name}.py").read_text() for name in ("parser", "connection")]
    sources.append((HTTP / "cross_origin.py").read_text())
    said = {int(status) for text in sources for status in re.findall(r"problem\((\d+)", text)}

    assert len(said) >= 9
    assert said | {401, 403, 429} <= set(REASONS)  # of errors: unknown, revoked, over a quota
    assert len(set(REASONS.values())) == len(REASONS)


def test_times_stand_in_their_buckets(monkeypatch):
    counters = RequestCounters("getTopic", "GET")
    for now in (0.0, 0.0005, 0.001, 0.003, 99.0):
        monkeypatch.setattr("waterclock.server.http.counters.perf_counter", lambda now=now: now)
        counters.note(200, 0.0)

    found = counters.milliseconds()
    assert (found.counts[0], found.counts[MILLISECONDS.index(5)], found.counts[-1]) == (3, 1, 1)
    assert (found.count, round(found.total, 6)) == (5, 99_004.5)
