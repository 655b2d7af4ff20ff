"""The whole server: bounded calls, bugs, health, reflection, and stopping with calls under way."""

import asyncio
from typing import Any, cast

import pytest
from grpc import StatusCode
from grpc.aio import EOF, AioRpcError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.server.http_client import raw_client, until
from tests.server.members import Member, values_of
from tests.server.served import Gate, config_in, failure, running_server
from waterclock.model.errors import BadConfig
from waterclock.model.sections import ClusterConfig, ServerConfig
from waterclock.node.node import running_node
from waterclock.runtime.clock import SystemClock
from waterclock.server.app import serve
from waterclock.v1 import admin_pb2, broker_pb2, scheduler_pb2
from waterclock.v1 import broker_pb2 as pb

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = tuple(
    f"waterclock.v1.{name}" for name in ("Admin", "Backups", "Broker", "Scheduler", "WriteRegistry")
)


async def health(it, service: str = "") -> int:
    stub: Any = health_pb2_grpc.HealthStub(it.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def test_calls_beyond_the_limit_are_refused_until_one_ends(tmp_path):
    async with running_server(tmp_path, server=ServerConfig(calls_max=2)) as it:
        await it.publish(b"a")
        request = pb.FetchRequest(topic="orders", offset=1, wait_ms=60_000)
        polls = [asyncio.ensure_future(it.broker.Fetch(request)) for _ in range(2)]
        await until(lambda: it.server.calls.in_flight == 2)
        code, details, facts = await failure(it.publish(b"b"))
        polls[0].cancel()
        await until(lambda: it.server.calls.in_flight == 1)

        assert code == StatusCode.RESOURCE_EXHAUSTED
        assert details == "too many calls at once (at most 2): try again soon"
        assert facts == {"error": "Overloaded", "field": "calls", "limit": "2"}
        assert (await it.publish(b"b")).count == 1
        await polls[1]


async def test_a_bug_is_internal_with_an_id_and_the_node_goes_on(tmp_path, caplog, monkeypatch):
    async with running_server(tmp_path) as it:

        async def broken(*_, **__):
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(it.node.publisher, "publish_batch", broken)
        code, details, facts = await failure(it.publish(b"a"))
        monkeypatch.undo()

        assert code == StatusCode.INTERNAL
        assert facts["error-id"] in details
        assert caplog.text.count(facts["error-id"]) == 1
        assert caplog.text.count("ZeroDivisionError: planted") == 1
        assert (await it.publish(b"a")).count == 1


async def test_every_method_of_the_api_is_served(tmp_path):
    async with running_server(tmp_path) as it:
        for module in (admin_pb2, broker_pb2, scheduler_pb2):
            for service in module.DESCRIPTOR.services_by_name.values():
                assert {f"{service.name}/{method.name}" for method in service.methods} <= set(
                    it.server.calls.methods
                )


async def test_health_follows_the_node(tmp_path):
    async with running_server(tmp_path) as it:
        for service in ("", *SERVICES):
            assert await health(it, service) == SERVING
        stub: Any = health_pb2_grpc.HealthStub(it.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        await it.server.stop()

        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() is EOF  # or gRPC could not stop before it


async def test_health_of_services_nobody_knows(tmp_path):
    async with running_server(tmp_path) as it:
        stub: Any = health_pb2_grpc.HealthStub(it.channel)
        asked = health_pb2.HealthCheckRequest(service="nobody")
        code, _, _ = await failure(stub.Check(asked))
        watched = await stub.Watch(asked).read()
        listed = await stub.List(health_pb2.HealthListRequest())  # type: ignore[attr-defined]

        assert code == StatusCode.NOT_FOUND
        assert watched.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        assert {name: one.status for name, one in listed.statuses.items()} == dict.fromkeys(
            ("", *SERVICES), SERVING
        )


async def test_a_busy_node_does_not_look_dead(tmp_path):
    async with running_server(tmp_path, server=ServerConfig(calls_max=1)) as it:
        member = Member(it)
        await member.open()
        assert (await failure(it.publish(b"a")))[0] == StatusCode.RESOURCE_EXHAUSTED

        assert await health(it) == SERVING


async def test_reflection_names_the_services(tmp_path):
    async with running_server(tmp_path) as it:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, it.channel))
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        await call.done_writing()

        names = {service.name for service in answer.list_services_response.service}
        assert set(SERVICES) <= names
        assert "grpc.health.v1.Health" in names


async def test_live_and_ready_are_told_over_http(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        live, ready = await client.get("/health/live"), await client.get("/health/ready")
        it.node.stop_serving()
        not_ready = await client.get("/health/ready")

        assert (live.status, live.json()) == (200, {"status": "live"})
        assert (ready.status, ready.json()) == (200, {"status": "ready", "problems": []})
        assert not_ready.status == 503
        [problem] = not_ready.json()["problems"]
        assert (problem["name"], problem["detail"]) == ("stopping", "the node is stopping")


async def test_a_stopping_node_ends_who_waits_and_lets_publishes_finish(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        request = pb.FetchRequest(topic="orders", offset=1, wait_ms=60_000)
        poll = asyncio.ensure_future(failure(it.broker.Fetch(request)))
        member = Member(it)
        await member.open()
        await member.answer(pb.Answer.ACK, await member.delivery())
        gate = Gate(it.node)
        publish = asyncio.ensure_future(it.publish(b"b"))
        await until(lambda: gate.held and it.server.calls._waits)
        stopping = asyncio.ensure_future(it.server.stop())
        code, _, facts = await poll
        assert (code, facts["error"]) == (StatusCode.UNAVAILABLE, "Stopping")
        assert await member.ended() == (StatusCode.UNAVAILABLE, "the node is stopping")
        assert not publish.done()
        gate.is_open.set()

        assert (await publish).first_offset == 1
        await stopping
        assert it.server.calls.in_flight == 0
        with pytest.raises(AioRpcError) as refused:
            await it.publish(b"c")
        assert refused.value.code() == StatusCode.UNAVAILABLE


async def test_a_member_may_finish_what_it_holds_while_the_node_stops(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a", b"b")
        member = Member(it)
        await member.open(credit=pb.Credit(messages=2, bytes=1_000_000))
        delivery = await member.delivery()
        await it.publish(b"c")
        stopping = asyncio.ensure_future(it.server.stop())
        await until(lambda: it.server.calls.is_stopping)
        await member.say(credit=pb.Credit(messages=100, bytes=1_000_000))
        await member.answer(pb.Answer.ACK, delivery, bounds=[0, 1])
        await until(lambda: it.node.groups.get("orders", "g").partitions[0].committed == 1)
        for _ in range(10):
            await asyncio.sleep(0)
        await member.answer(pb.Answer.ACK, delivery, bounds=[1, 2])
        ended = await member.ended()
        await stopping

        assert ended == (StatusCode.UNAVAILABLE, "the node is stopping")
        (host,) = it.node.groups.hosts()
        (partition,) = it.node.groups.get("orders", "g").partitions
        assert (partition.committed, host.counters.delivered) == (2, 2)
    async with running_server(tmp_path) as it:
        member = Member(it)
        await member.open()
        delivery = await member.delivery()
        assert (values_of(delivery), delivery.attempt) == ([b"c"], 1)


async def test_who_does_not_finish_is_ended_with_the_drain_and_not_counted_as_failed(tmp_path):
    async with running_server(tmp_path, server=ServerConfig(drain_ms=50)) as it:
        await it.publish(b"a")
        member = Member(it)
        await member.open()
        await member.delivery()
        await it.server.stop()

        assert await member.ended() == (StatusCode.UNAVAILABLE, "the node is stopping")
    async with running_server(tmp_path) as it:
        member = Member(it)
        await member.open()
        assert (await member.delivery()).attempt == 1


async def test_a_publish_that_never_ends_is_cut_off_after_the_drain(tmp_path):
    async with running_server(tmp_path, server=ServerConfig(drain_ms=10)) as it:
        gate = Gate(it.node)
        publish = asyncio.ensure_future(failure(it.publish(b"a")))
        await until(lambda: gate.held)
        await it.server.stop()
        code, _, _ = await publish

        assert code in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)


@pytest.mark.parametrize("setting", ["grpc_port", "http_port"])
async def test_a_second_node_on_a_port_fails_with_one_clear_line(tmp_path, setting):
    async with running_server(tmp_path / "one") as it:
        taken = {"grpc_port": 0, "http_port": 0, setting: getattr(it.server, setting)}
        config = config_in(tmp_path / "two", cluster=ClusterConfig(**taken))
        with pytest.raises(BadConfig) as raised:
            async with running_node(config, SystemClock()) as node, serve(node, config):
                pass

        line = str(raised.value)
        assert line.startswith(f"configuration cluster.{setting}: cannot listen on 127.0.0.1:")
        assert "in use" in line.lower()
        assert (await it.publish(b"a")).count == 1


async def test_a_host_that_is_none_of_ours_is_one_clear_line(tmp_path):
    config = config_in(tmp_path, server=ServerConfig(host="no-such-host.invalid"))
    with pytest.raises(BadConfig, match=r"server.host: 'no-such-host.invalid' is no address"):
        async with running_node(config, SystemClock()) as node, serve(node, config):
            pass
