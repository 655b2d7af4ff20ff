"""Connecting needs no configuration, and what goes wrong is said as what it is."""

import asyncio

import grpc
import pytest

from tests.client.fake_node import NOW_MS, fake_node
from waterclock.client.advice import advised
from waterclock.client.calls import clock_difference
from waterclock.client.client import Client, connect
from waterclock.client.errors import error_of, error_of_problem
from waterclock.client.settings import ClientSettings
from waterclock.client.target import address_of
from waterclock.model import errors
from waterclock.model.errors import (
    AlreadyExists,
    BadConfig,
    BadInput,
    Closed,
    LimitExceeded,
    NodeFailed,
    NotFound,
    OffsetOutOfRange,
    Overloaded,
    TimedOut,
    Unavailable,
    Unreachable,
    WaterclockError,
)
from waterclock.server.statuses import status_of
from waterclock.v1 import broker_pb2


def failed(code: grpc.StatusCode, details: str = "", **trailers: str) -> grpc.aio.AioRpcError:
    pairs = [(f"waterclock-{name}", value) for name, value in trailers.items()]
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*pairs), details)


def as_raised(error: WaterclockError) -> WaterclockError:
    """Return an error as it arrives, having travelled as a node sends it."""
    status = status_of(error, "a test")
    metadata = grpc.aio.Metadata(*status.trailers)
    return error_of(
        grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), metadata, status.details), "here"
    )


@pytest.mark.parametrize(
    ("given", "variable", "meant"),
    [
        (None, None, "localhost:9000"),
        (None, "node-1:7000", "node-1:7000"),
        ("node-2:7001", "node-1:7000", "node-2:7001"),
        ("node-3", None, "node-3:9000"),
        ("[::1]:7000", None, "[::1]:7000"),
        ("[::1]", None, "[::1]:9000"),
        ("grpc://node-4:7000", None, "node-4:7000"),
        ("grpc://node-4/", None, "node-4:9000"),
        (" node-5:7000 ", None, "node-5:7000"),
    ],
)
def test_an_address_is_optional(given, variable, meant, monkeypatch):
    monkeypatch.delenv("WATERCLOCK_ADDRESS", raising=False)
    if variable:
        monkeypatch.setenv("WATERCLOCK_ADDRESS", variable)

    assert address_of(given) == meant


@pytest.mark.parametrize(
    "address",
    [
        "host:", "host:port", "host:0", "host:65536", ":9000", "http://host:8080", "a b:1",
        "host:9000/orders", "https://host",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(BadInput, match="host:port"):
        address_of(address)


def test_an_address_of_http_says_what_to_type():
    with pytest.raises(BadInput, match=r"not HTTP\. Type node-1:9000, or the port .* for gRPC"):
        address_of("http://node-1:8080")


@pytest.mark.parametrize(
    ("node_ms", "took_ms", "ahead_ms"),
    [
        (1_000, 0, 0),
        (1_004, 5, 0),
        (1_006, 5, 0),
        (1_007, 5, 5),
        (998, 5, -4),
        (61_000, 10, 59_995),
    ],
)
def test_the_clocks_differ_by_what_the_answers_way_cannot_explain(node_ms, took_ms, ahead_ms):
    assert clock_difference(node_ms, asked_ms=1_000, took_ms=took_ms) == ahead_ms


async def test_times_go_by_the_nodes_clock():
    async with fake_node() as node, connect(node.address) as client:
        await client.publish("orders", b"", at="+1h", expires="+1m")

        (row,) = node.topics["orders"].rows
        due_ms = row["due_ms"]
        assert isinstance(due_ms, int)
        # The fake's clock stands still, ours goes on.
        assert 0 <= due_ms - (NOW_MS + 3_600_000) < 10_000
        assert row["headers"] == [("wc-expires-ms", b"%d" % (due_ms + 60_000))]


async def test_how_long_a_message_is_of_use_does_not_count_from_a_time_that_has_passed():
    async with fake_node() as node, connect(node.address) as client:
        await client.publish("orders", b"", at="2020-01-01T00:00Z", expires="+1m")

        (row,) = node.topics["orders"].rows
        assert isinstance(row["headers"], list)
        ((_, end_ms),) = row["headers"]
        assert int(end_ms) >= NOW_MS + 60_000


async def test_a_node_that_is_not_there_is_told_of_in_one_sentence():
    async with fake_node() as node:
        pass
    with pytest.raises(Unreachable) as caught:
        async with connect(node.address, ClientSettings(connect_timeout_ms=50)):
            pass
    said = str(caught.value)
    assert said.startswith(f"no Waterclock node answers at {node.address}")
    assert "waterclock up" in said
    assert "WATERCLOCK_ADDRESS" in said


async def test_a_node_that_starts_a_little_later_is_waited_for():
    async with fake_node() as node:
        await node.stop()
        async with asyncio.TaskGroup() as tasks:

            async def publish() -> int:
                async with connect(node.address, ClientSettings(retry_delay_ms=1)) as client:
                    return (await client.publish("orders", b"x")).offset

            publishing = tasks.create_task(publish())
            await asyncio.sleep(0)
            await node.start()
            assert await publishing == 0


async def test_an_error_in_the_block_comes_out_as_it_went_in():
    async with fake_node() as node:

        async def stumble() -> None:
            async with connect(node.address) as client:
                await client.publish("orders", b"x")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await stumble()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), connect(node.address):
                await asyncio.Event().wait()


async def test_a_client_outside_its_block_says_so():
    client = connect("localhost")
    with pytest.raises(Closed, match="async with"):
        await client.publish("orders", b"x")
    with pytest.raises(Closed, match="async with"):
        await client.topics.list()
    with pytest.raises(Closed, match="async with"):
        client.replay("orders")
    assert repr(client) == "<Client of localhost:9000, not open>"


@pytest.mark.parametrize(
    "error",
    [
        LimitExceeded("key bytes", 65_536, got=70_000),
        AlreadyExists("topic", "orders"),
        NotFound("group", "billing"),
        OffsetOutOfRange(7, start=10, end=20),
        Overloaded("calls", 3),
        BadConfig("log.fsync", "is unknown"),
        errors.UnknownTopic("orders"),
        errors.Stopping("going down"),
        errors.StorageFull("no space"),
        errors.Busy("it has members"),
        errors.NotAuthenticated("the credential has expired"),
        errors.Forbidden("publish", "topic 'orders'", principal="billing"),
        errors.QuotaExceeded("requests/s", 7, principal="billing", retry_after_ms=250),
    ],
)
def test_an_error_arrives_as_it_was_raised(error):
    arrived = as_raised(error)

    assert type(arrived) is type(error)
    assert str(arrived) == str(advised(error))
    assert {name: getattr(arrived, name) for name in vars(error)} == vars(error)


def test_every_error_of_the_tree_can_arrive():
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, WaterclockError):
            arrived = error_of(failed(grpc.StatusCode.UNKNOWN, "words", error=name), "here")
            assert type(arrived) is kind
            assert str(arrived).partition("; ")[0] == "words"  # then perhaps what to do


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection refused", Unreachable),
        (grpc.StatusCode.CANCELLED, "", Unreachable),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2", Unreachable),
        (grpc.StatusCode.UNKNOWN, "Stream removed", Unreachable),
        (grpc.StatusCode.INTERNAL, "Internal error from Core", Unreachable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", TimedOut),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max", LimitExceeded),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many pings", Unavailable),
        (grpc.StatusCode.INVALID_ARGUMENT, "no", BadInput),
        (grpc.StatusCode.NOT_FOUND, "no", NotFound),
        (grpc.StatusCode.UNAUTHENTICATED, "no", errors.NotAuthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, "no", errors.Forbidden),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", NodeFailed),
        (grpc.StatusCode.INTERNAL, "something unforeseen, error 17", NodeFailed),
    ],
)
def test_what_no_node_said_is_told_by_its_status(code, details, kind):
    assert type(error_of(failed(code, details), "here")) is kind


def test_a_problem_with_one_batch_is_the_same_error():
    problem = broker_pb2.Problem(
        code=3, message="too long", error="LimitExceeded", field="key bytes", limit=7
    )
    found = error_of_problem(problem, "here")

    assert isinstance(found, LimitExceeded)
    assert (str(found), found.field, found.limit) == ("too long", "key bytes", 7)
    assert type(error_of_problem(broker_pb2.Problem(code=13), "here")) is NodeFailed


@pytest.mark.parametrize(
    "wrong",
    [
        {"linger_ms": -1},
        {"in_flight_max": 0},
        {"batch_bytes": 5},
        {"linger_ms": 0.5},
        {"acks": "1"},
    ],
)
def test_settings_are_checked(wrong):
    with pytest.raises(BadConfig, match=next(iter(wrong))):
        ClientSettings(**wrong)


def test_a_client_shows_what_it_is():
    assert repr(Client("node-1:7000")) == "<Client of node-1:7000, not open>"
