"""Streams of a real node, from the client: all it offers, and every error by its name."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.fake_node import fake_node
from tests.client.http_peers import END, ok, proxy_of, refusal, scripted
from tests.server.http_client import until
from tests.server.served import Served, running_server
from waterclock.client.client import Client, connect
from waterclock.client.settings import ClientSettings
from waterclock.client.streams.calls import reachable, wait_ms_of
from waterclock.client.streams.http_request import ConnectionBroken
from waterclock.client.streams.results import StreamMessage
from waterclock.model.errors import (
    BadInput,
    CapacityReached,
    Closed,
    ForgedToken,
    Gone,
    LimitExceeded,
    MatchTimeout,
    NodeFailed,
    NotFound,
    StoreUnavailable,
    TimedOut,
    Unavailable,
    Unreachable,
)

QUICK = ClientSettings(retry_delay_ms=1, retry_delay_ms_max=2)
LONG = "60s"


@asynccontextmanager
async def connected(folder: Path, **sections: Any) -> AsyncIterator[tuple[Served, Client]]:
    async with (
        running_server(folder, **sections) as served,
        connect(served.server.addresses.grpc, QUICK) as client,
    ):
        yield served, client


@asynccontextmanager
async def directed_to(folder: Path, url: str, **options: Any) -> AsyncIterator[Client]:
    """Give a client of a node, whose streams are elsewhere."""
    async with running_server(folder) as served:
        address, chosen = served.server.addresses.grpc, ClientSettings(retry_delay_ms=1, **options)
        async with connect(address, chosen, http_address=url) as client:
            yield client


async def test_what_is_sent_is_received_once_in_order(tmp_path):
    async with connected(tmp_path) as (_, client):
        streams = client.streams
        first = await streams.send("chat", {"token": "Hello"}, message_id="m-1")
        await streams.send("chat", [1, None, True, "ü"])
        message = await streams.receive("chat", timeout=LONG)
        rest = await streams.receive("chat", timeout=LONG, limit=10)

        assert (first.stream, first.message_id, first.position) == ("chat", "m-1", 1)
        assert (first.is_delivered, first.resume_token) == (False, None)
        assert message is not None
        assert (message.id, message.value, message.position) == ("m-1", {"token": "Hello"}, 1)
        assert message.missed == 0
        assert message.sent.tzinfo is not None
        assert [each.value for each in rest] == [[1, None, True, "ü"]]
        assert await streams.receive("chat", timeout=0) is None
        assert await streams.receive("chat", timeout="1ms", limit=2) == []


async def test_who_waits_gets_what_comes(tmp_path):
    async with connected(tmp_path) as (served, client), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.streams.receive("chat", timeout=LONG))
        await until(lambda: served.node.streams.table.waiting)
        sent = await client.streams.send("chat", "now")

        assert sent.is_delivered
        found = await waiting
        assert found is not None
        assert found.value == "now"


async def test_sender_and_receiver_meet_where_nothing_is_kept(tmp_path):
    async with connected(tmp_path) as (served, client), asyncio.TaskGroup() as tasks:
        with pytest.raises(MatchTimeout):
            await client.streams.send("door", "knock", size=0, timeout=timedelta(0))
        sending = tasks.create_task(client.streams.send("door", "again", timeout=LONG))
        await until(lambda: served.node.streams.table.waiting)
        found = await client.streams.receive("door", timeout=LONG)

        assert found is not None
        assert found.value == "again"
        assert (await sending).is_delivered


async def test_a_patient_sender_waits_for_room_and_an_impatient_one_overwrites(tmp_path):
    async with connected(tmp_path) as (served, client), asyncio.TaskGroup() as tasks:
        streams = client.streams
        await streams.send("small", 1, size=1)
        with pytest.raises(MatchTimeout):
            await streams.send("small", 2, blocking_timeout=0.001)
        sending = tasks.create_task(streams.send("small", 3, blocking_timeout=LONG))
        await until(lambda: served.node.streams.table.waiting)
        first = await streams.receive("small", timeout=LONG)
        await sending
        await streams.send("small", 4)
        last = await streams.receive("small", timeout=LONG)

        assert first is not None
        assert last is not None
        assert (first.value, last.value, last.missed) == (1, 4, 1)


async def test_named_consumers_each_get_everything(tmp_path):
    async with connected(tmp_path) as (_, client):
        for number in range(3):
            await client.streams.send("chat", number, size=2)
        for name in ("ada", "grace"):
            found = await client.streams.receive("chat", timeout=LONG, consumer=name, limit=10)
            assert [each.value for each in found] == [1, 2]
        assert (await client.streams.get("chat")).consumers == {"ada": 3, "grace": 3}


async def test_a_stored_message_stays_and_its_id_is_stored_once(tmp_path):
    async with connected(tmp_path) as (_, client):
        streams = client.streams
        first = await streams.send_and_store("log", "a", message_id="m", ttl="1h")
        again = await streams.send_and_store("log", "b", message_id="m")
        both = await streams.send("log", "c", store=True)

        assert (first.position, first.is_new, first.message_id) == (1, True, "m")
        assert (again.position, again.is_new) == (1, False)
        assert again.resume_token == first.resume_token
        assert both.resume_token is not None
    async with connected(tmp_path) as (_, client):
        streams = client.streams
        found = await streams.receive("log", timeout=LONG, resume="earliest", limit=9)
        after = await streams.receive("log", timeout=LONG, resume=first.resume_token)

        assert [each.value for each in found] == ["a", "c"]
        assert found[1].resume_token == both.resume_token
        assert after is not None
        assert after.value == "c"


async def test_what_is_lost_is_told_with_its_count_and_the_way_on(tmp_path):
    async with connected(tmp_path) as (_, client):
        streams = client.streams
        await streams.send("chat", 0, size=2)
        seen = await streams.receive("chat", timeout=LONG)
        assert seen is not None
        for number in range(1, 5):
            await streams.send("chat", number)
        with pytest.raises(Gone) as gone:
            await streams.receive("chat", timeout=LONG, resume=seen.resume_token)
        rest = await streams.receive("chat", timeout=LONG, resume=gone.value.resume_token, limit=9)

        assert gone.value.missed == 2
        assert [each.value for each in rest] == [3, 4]


async def test_streams_are_listed_looked_at_resized_and_deleted(tmp_path):
    async with connected(tmp_path) as (_, client):
        streams = client.streams
        names = [f"s-{number}" for number in range(1_005)]
        names += ["a/b?c#d e", "..", "☃%20", "'; DROP TABLE streams"]
        for name in names:
            await streams.send(name, name)
        assert await streams.list() == names
        for name in names[-4:]:
            found = await streams.get(name)
            assert (found.name, found.size, found.messages) == (name, 100, 1)
            assert (found.first_position, found.last_position, found.waiting) == (1, 1, 0)
            assert (await streams.resize(name, 7)).size == 7
            await streams.delete(name)
            for call in (streams.get(name), streams.resize(name, 1), streams.delete(name)):
                with pytest.raises(NotFound, match="stream"):
                    await call


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"x", "not bytes: decode it"),
        (bytearray(b"x"), "not bytearray"),
        ({"a": b"x"}, "bytes is not JSON"),
        (timedelta(1), "timedelta is not JSON"),
        (float("nan"), "not JSON compliant"),
        ("\udc80", "not valid text"),
    ],
)
async def test_what_is_no_json_is_refused_before_anything_is_sent(tmp_path, message, words):
    async with scripted(lambda n: [END]) as peer, directed_to(tmp_path, peer.url) as client:
        with pytest.raises(BadInput, match=words):
            await client.streams.send("chat", message)
        assert peer.requests == []


async def test_what_the_node_refuses_is_told_by_field_and_limit(tmp_path):
    async with connected(tmp_path) as (_, client):
        streams = client.streams
        with pytest.raises(LimitExceeded) as large:
            await streams.send("chat", "x" * (10 << 20))
        assert (large.value.field, large.value.limit) == ("message bytes", 10 << 20)
        with pytest.raises(CapacityReached) as long:
            await streams.send("chat", 1, size=20_000)
        assert (long.value.field, long.value.limit) == ("inMemoryStreamSize", 10_000)
        with pytest.raises(BadInput, match="resumeToken"):
            await streams.receive("chat", timeout=0, resume="forged")
        with pytest.raises(ForgedToken):
            await streams.receive("chat", timeout=0, resume="0f" * 30)
        with pytest.raises(BadInput, match="streamId"):
            await streams.send("x" * 513, 1)
        with pytest.raises(BadInput, match="stream must be text"):
            await streams.send("", 1)
        with pytest.raises(BadInput, match="timeout: "):
            await streams.receive("chat", timeout="soon")


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(JSON_VALUES, min_size=1, max_size=40))
async def test_any_json_comes_back_as_it_was(tmp_path_factory, values):
    async with connected(tmp_path_factory.mktemp("node")) as (_, client):
        for value in values:
            await client.streams.send("any", value)
        found = await client.streams.receive("any", timeout=LONG, limit=100)
        assert [each.value for each in found] == values


# Trouble on the way


async def test_a_cancelled_receive_leaves_nobody_waiting_and_takes_nothing(tmp_path):
    async with connected(tmp_path) as (served, client), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.streams.receive("chat", timeout=LONG))
        await until(lambda: served.node.streams.table.waiting)
        waiting.cancel()
        await until(lambda: not served.node.streams.table.waiting)

        assert not (await client.streams.send("chat", "kept")).is_delivered
        found = await client.streams.receive("chat", timeout=LONG)
        assert found is not None
        assert found.value == "kept"


async def test_storing_goes_on_through_lost_answers_without_a_repeat(tmp_path):
    async with (
        running_server(tmp_path) as served,
        proxy_of(served.server.addresses.http_port) as proxy,
        connect(served.server.addresses.grpc, QUICK, http_address=proxy.url) as client,
    ):
        for number in range(10):
            proxy.cut_after = proxy.passed + 20  # in the midst of the answer
            stored = await client.streams.send_and_store("log", number)
            assert stored.position == number + 1
        found = await client.streams.receive("log", timeout=LONG, resume="earliest", limit=100)
        assert [each.value for each in found] == [*range(10)]
        assert proxy.connections >= 11


async def test_a_send_whose_answer_is_lost_is_not_repeated(tmp_path):
    async with (
        running_server(tmp_path) as served,
        proxy_of(served.server.addresses.http_port) as proxy,
        connect(served.server.addresses.grpc, QUICK, http_address=proxy.url) as client,
    ):
        proxy.cut_after = 20
        with pytest.raises(ConnectionBroken):
            await client.streams.send("chat", "once")
        found = await client.streams.receive("chat", timeout=LONG, limit=9)
        assert [each.value for each in found] == ["once"]


async def test_what_the_node_refused_to_begin_is_sent_again(tmp_path):
    busy = b'{"status":429,"error":"Overloaded","detail":"later","field":"x","limit":1}'
    moved = b'{"status":424,"error":"NotOwner","detail":"elsewhere"}'
    sent = b'{"streamId":"s","messageUuid":"m","position":7,"delivered":true}'
    said = [refusal(429, busy), refusal(424, moved), ok(sent)]
    async with scripted(lambda n: said[n]) as peer, directed_to(tmp_path, peer.url) as client:
        assert (await client.streams.send("s", 1)).position == 7
        assert len(peer.requests) == 3


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (ok(b"<html>"), NodeFailed),
        (ok(b"{}"), NodeFailed),
        (refusal(418, b"tea"), NodeFailed),
        (refusal(503, b'{"error":"StoreUnavailable"}'), StoreUnavailable),
        (refusal(504), Unavailable),
        ([], TimedOut),
        ([END], Unreachable),
    ],
)
async def test_an_answer_that_is_no_nodes_is_an_error_of_ours(tmp_path, said, error):
    patience_ms = 15_000 if said else 500
    async with (
        scripted(lambda n: said) as peer,
        directed_to(tmp_path, peer.url, call_timeout_ms=patience_ms) as client,
    ):
        with pytest.raises(error):
            await client.streams.send("s", 1, timeout=0)


async def test_what_is_stored_is_tried_for_as_long_as_told(tmp_path):
    away = refusal(503, b'{"error":"StoreUnavailable"}')
    async with (
        scripted(lambda n: away) as peer,
        directed_to(tmp_path, peer.url, delivery_timeout_ms=500) as client,
    ):
        # The last attempt may not have had the time to be refused.
        with pytest.raises((StoreUnavailable, TimedOut, Unreachable)):
            await client.streams.send_and_store("s", 1)
        assert len(peer.requests) > 2
        ids = {re.search(rb'"messageUuid":"(.*?)"', each)[1] for each in peer.requests}  # type: ignore[index]
        assert len(ids) == 1


async def test_nobody_at_the_http_address_is_told(tmp_path):
    async with scripted(lambda n: [END]) as peer:
        pass
    async with directed_to(tmp_path, peer.url, call_timeout_ms=50) as client:
        with pytest.raises(Unreachable, match="no Waterclock node answers at http://127"):
            await client.streams.list()


async def test_a_node_that_does_not_say_where_it_has_streams_is_told_only_if_asked_for_them():
    async with fake_node() as node, connect(node.address) as client:
        await client.publish("orders", b"x")
        with pytest.raises(Unreachable, match="http_address"):
            await client.streams.send("chat", 1, timeout=0)
    with pytest.raises(BadInput, match="http://host:port"):
        connect(http_address="https://somewhere")


async def test_a_client_that_is_not_open_says_so(tmp_path):
    async with connected(tmp_path) as (_, client):
        await client.streams.send("chat", 1)
    with pytest.raises(Closed):
        await client.streams.send("chat", 1)
    with pytest.raises(Closed):
        await connect("localhost:1").streams.list()


@pytest.mark.parametrize(
    ("named", "grpc", "url"),
    [
        ("http://10.0.0.1:80", "10.0.0.1:9000", "http://10.0.0.1:80"),
        ("http://0.0.0.0:8080", "node-1:9000", "http://node-1:8080"),
        ("http://[::]:8080", "[::1]:9000", "http://[::1]:8080"),
        ("http://127.0.0.1:8080", "localhost:9000", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "node-1:9000", "http://node-1:8080"),
    ],
)
def test_streams_are_looked_for_where_the_node_can_be_reached(named, grpc, url):
    assert reachable(named, grpc) == url


def test_a_wait_is_text_a_timedelta_or_seconds():
    assert [wait_ms_of("t", each) for each in ("1s", timedelta(seconds=2), 0.0015, 3)] == [
        1_000, 2_000, 2, 3_000,
    ]  # fmt: skip
    for wrong in (-1, float("nan"), timedelta(-1), True, None, "5"):
        with pytest.raises(BadInput, match=r"^t\b"):
            wait_ms_of("t", wrong)  # type: ignore[arg-type]


async def test_a_message_is_what_it_is_made_of(tmp_path):
    async with connected(tmp_path) as (_, client):
        await client.streams.send("chat", 1)
        found = await client.streams.receive("chat", timeout=0)
        assert isinstance(found, StreamMessage)
        assert "1 open" in repr(client.streams)
