"""Leases over HTTP and at a client when the node's clock is set: they stand as long as ever."""

import pytest

from tests.kit.clock import ManualClock
from tests.server.http_client import raw_client
from tests.server.served import running_server
from tests.server.test_rest_messages import PATH, consumers_of, taken
from waterclock.client.client import connect
from waterclock.server.rest.consumer import FORGET_MS

ACKS = "/topics/orders/acks"
HOUR_MS = 3_600_000
steps = pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])


@steps
async def test_a_lease_over_http_stands_when_the_clock_is_set(tmp_path, step_ms):
    clock = ManualClock()
    async with (
        running_server(tmp_path, clock=clock) as it,
        raw_client(it.server.http_port) as client,
    ):
        await client.post(PATH, {"messages": [{"value": "a"}, {"value": "b"}]})
        first, second = await taken(client, limit=2)

        clock.step(step_ms)
        consumers_of(it).beat()
        acked = await client.post(ACKS, {"group": "g", "ack": [first["lease"]]})
        assert (acked.status, acked.json()["accepted"]) == (200, 1)

        extension = {"group": "g", "extend": [second["lease"]], "extendBy": "1h"}
        assert (await client.post(ACKS, extension)).status == 200
        clock.step(-step_ms)
        consumers_of(it).beat()
        acked = await client.post(ACKS, {"group": "g", "ack": [second["lease"]]})
        assert (acked.status, acked.json()["accepted"]) == (200, 1)


async def test_a_lease_that_ended_long_ago_is_forgotten_whatever_the_wall_clock_says(tmp_path):
    clock = ManualClock()
    async with (
        running_server(tmp_path, clock=clock) as it,
        raw_client(it.server.http_port) as client,
    ):
        await client.post(PATH, {"value": "a"})
        (message,) = await taken(client)

        clock.advance(it.node.config.delivery.ack_timeout_ms + FORGET_MS + 1)
        clock.step(-HOUR_MS)
        consumers_of(it).beat()
        acked = await client.post(ACKS, {"group": "g", "ack": [message["lease"]]})
        assert acked.status == 409


@steps
async def test_a_client_hands_out_all_it_was_sent_when_the_nodes_clock_is_set(tmp_path, step_ms):
    clock = ManualClock()
    async with (
        running_server(tmp_path, clock=clock) as it,
        connect(it.server.addresses.grpc) as client,
        client.subscribe("orders", group="g") as messages,
    ):
        clock.step(step_ms)
        await it.publish(b"a", b"b", b"c")
        first = await anext(messages)
        messages._session.tick(client._connection.clock.monotonic_ms())
        assert first.extend("10s")
        assert [first.value, (await anext(messages)).value] == [b"a", b"b"]

        (delivery,) = messages._session._unsettled
        assert delivery.lease_ms == it.node.config.delivery.ack_timeout_ms
