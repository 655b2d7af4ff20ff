"""Dispatchers, workers and Redis as processes, when nothing goes wrong."""

import json
import socket
import struct

import pytest
import redis

from benchmarks.peers.server import free_port
from tests.dispatch.programs import Fleet, fleet, wait
from tests.dispatch.redis_servers import cluster
from tests.dispatch.traffic import SOURCE_KINDS, listening, numbers, ready, send
from waterclock.dispatch.redis.keys import beside

HANDLERS = "tests.dispatch.work_handlers"


@pytest.fixture
def programs(server, name, tmp_path):
    """Give what starts programs that share keys of their own."""
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    with fleet(tmp_path, **config, source=f"{name}-in") as programs:
        yield programs


@pytest.mark.parametrize("handler", ["copy", "copy_later"])
@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_every_message_is_written_once_and_nothing_stays_pending(
    programs: Fleet, look, name, source_kind, handler
):
    dispatcher = programs.start("dispatcher", source_kind=source_kind)
    for _ in range(2):
        programs.start("worker", handler=f"{HANDLERS}:{handler}")
    ready(dispatcher, workers=2)

    send(look, source_kind, f"{name}-in", ({"n": n} for n in range(5_000)))
    wait(lambda: dispatcher.count("acked") == 5_000, what="5000 acknowledgements")

    assert sorted(numbers(look, f"{name}-out")) == list(range(5_000))
    if source_kind == "stream":
        wait(lambda: not look.xpending(f"{name}-in", "waterclock")["pending"], what="nothing left")
    else:
        wait(lambda: not look.hlen(f"{{{name}}}:batches"), what="no stored batch")
        assert look.zcard(f"{{{name}}}:pending") == 0
    assert dispatcher.stop() == 0


@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_what_came_before_any_worker_waits_for_one(programs: Fleet, look, name, source_kind):
    dispatcher = programs.start("dispatcher", source_kind=source_kind)
    ready(dispatcher)
    send(look, source_kind, f"{name}-in", ({"n": n} for n in range(100)))
    wait(lambda: dispatcher.count("received") == 100, what="messages in the plan")

    programs.start("worker", handler=f"{HANDLERS}:copy")
    wait(lambda: dispatcher.count("acked") == 100, what="100 acknowledgements")

    assert sorted(numbers(look, f"{name}-out")) == list(range(100))


@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_handlers_skip_fail_and_succeed_as_they_say(programs: Fleet, look, name, source_kind):
    dispatcher = programs.start(
        "dispatcher", source_kind=source_kind, deliveries_max=3, retry_ms=10
    )
    programs.start("worker", handler=f"{HANDLERS}:picky")
    ready(dispatcher, workers=1)
    said = ["plain", "skip", "bytes", "permanent", "always", "second", "bad value"]

    send(look, source_kind, f"{name}-in", [{"n": n, "do": do} for n, do in enumerate(said)])
    send(look, source_kind, f"{name}-in", [b"no json"])
    wait(lambda: dispatcher.count("acked") + dispatcher.count("dead_lettered") == 8, what="8 ends")

    entries = sorted(
        (fields for _, fields in look.xrange(f"{name}-out")), key=lambda fields: sorted(fields)
    )
    assert {b"data": b"raw"} in entries
    plain = [fields for fields in entries if b"n" in fields]
    assert sorted((int(f[b"n"]), int(f[b"deliveries"])) for f in plain) == [(0, 1), (5, 2)]
    dead = f"{{{name}-in}}:dead" if source_kind == "stream" else f"{{{name}}}:dead"
    dead_letters = {fields[b"body"]: fields for _, fields in look.xrange(dead)}
    reasons = {dead_letter[b"reason"].partition(b":")[0] for dead_letter in dead_letters.values()}
    assert len(dead_letters) == 4
    assert reasons == {b"PermanentError", b"ValueError"}
    assert dead_letters[b"no json"][b"reason"].startswith(b"PermanentError: the body is no JSON")
    always = dead_letters[json.dumps({"n": 4, "do": "always"}).encode()]
    assert always[b"deliveries"] == b"3"
    assert len(always[b"uuid"]) == 36


def test_entries_with_several_fields_come_as_an_object(programs: Fleet, look, name):
    dispatcher = programs.start("dispatcher")
    programs.start("worker", handler=f"{HANDLERS}:copy")

    look.xadd(f"{name}-in", {"n": "7", "place": "cellar"})
    wait(lambda: dispatcher.count("acked") == 1, what="an acknowledgement")

    ((_, fields),) = look.xrange(f"{name}-out")
    assert fields == {b"n": b"7", b"place": b"cellar"}


def test_a_giant_is_dead_lettered_and_its_neighbours_live(programs: Fleet, look, name):
    dispatcher = programs.start("dispatcher", body_bytes_max=100)
    programs.start("worker", handler=f"{HANDLERS}:copy")
    ready(dispatcher, workers=1)

    send(look, "stream", f"{name}-in", [{"n": 1}, {"n": 2, "much": "x" * 200}, {"n": 3}])
    wait(lambda: dispatcher.count("acked") == 2, what="two acknowledgements")
    wait(lambda: dispatcher.count("dead_lettered") == 1, what="a dead letter")

    assert sorted(numbers(look, f"{name}-out")) == [1, 3]
    assert look.xlen(beside(f"{name}-in", "dead")) == 1


def test_a_giant_on_a_channel_leaves_nothing_but_its_dead_letter(programs: Fleet, look, name):
    dispatcher = programs.start("dispatcher", source_kind="pubsub", body_bytes_max=100)
    ready(dispatcher)

    send(look, "pubsub", f"{name}-in", [{"n": 1, "much": "x" * 200}])
    wait(lambda: dispatcher.count("dead_lettered") == 1, what="a dead letter")
    wait(lambda: not look.exists(f"{{{name}}}:batches"), what="no stored batch")

    assert look.xlen(f"{{{name}}}:dead") == 1
    assert not look.exists(f"{{{name}}}:pending", f"{{{name}}}:done")


def test_done_entries_are_trimmed_if_so_wished(programs: Fleet, look, name):
    dispatcher = programs.start("dispatcher", is_source_trimmed=True)
    programs.start("worker", handler=f"{HANDLERS}:copy")

    send(look, "stream", f"{name}-in", ({"n": n} for n in range(500)))
    wait(lambda: dispatcher.count("acked") == 500, what="all of them")

    wait(lambda: look.xlen(f"{name}-in") == 0, what="an empty stream")


def test_a_worker_that_says_no_hello_is_given_one_message_a_frame(programs: Fleet, look, name):
    dispatcher = programs.start("dispatcher", legacy_credit=2)
    ready(dispatcher)
    with socket.create_connection(("127.0.0.1", dispatcher.said["port"])) as wire:
        wire.settimeout(30)
        ready(dispatcher, workers=1)
        send(look, "stream", f"{name}-in", ({"n": n} for n in range(3)))
        frames = wire.makefile("rb")
        for n in range(3):
            version, command, length = struct.unpack(">BBI", frames.read(6))
            payload = frames.read(length)
            assert (version, command) == (1, 0)
            assert payload[36:] == b":" + json.dumps({"n": n}).encode()
            wire.sendall(struct.pack(">BBI", 1, 1, 36) + payload[:36])
        wait(lambda: dispatcher.count("acked") == 3, what="three acknowledgements")
    wait(lambda: not look.xpending(f"{name}-in", "waterclock")["pending"], what="nothing left")


def test_a_leader_dials_the_workers_of_its_list(programs: Fleet, look, name):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")
    dispatcher = programs.start("dispatcher", workers=[f"127.0.0.1:{port}"])

    send(look, "stream", f"{name}-in", ({"n": n} for n in range(100)))
    wait(lambda: dispatcher.count("acked") == 100, what="all of them")

    assert sorted(numbers(look, f"{name}-out")) == list(range(100))


@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_on_a_cluster_the_output_is_spread_over_the_masters(tmp_path, source_kind):
    with cluster(tmp_path / "redis") as nodes:
        config = {"redis": [node.address for node in nodes], "output": "out", "streams": 6}
        with fleet(
            tmp_path / "programs", **config, source="in", source_kind=source_kind
        ) as programs:
            dispatcher = programs.start("dispatcher")
            for _ in range(2):
                programs.start("worker", handler=f"{HANDLERS}:copy")
            ready(dispatcher, workers=2)
            with redis.RedisCluster(host="127.0.0.1", port=nodes[0].port) as client:
                for n in range(500):
                    if source_kind == "stream":
                        client.xadd("in", {"data": json.dumps({"n": n})})
                    else:
                        client.publish("in", json.dumps({"n": n}))
                wait(lambda: dispatcher.count("acked") == 500, what="all of them")
                found = [numbers(client, f"out:{shard}") for shard in range(6)]
            assert sorted(n for each in found for n in each) == list(range(500))
            assert all(found)


def test_a_stopped_worker_finishes_what_it_has(programs: Fleet, look, name):
    dispatcher = programs.start("dispatcher")
    worker = programs.start("worker", handler=f"{HANDLERS}:slow", concurrency=2)
    ready(dispatcher, workers=1)
    send(look, "stream", f"{name}-in", ({"n": n, "seconds": 0.2} for n in range(4)))
    wait(lambda: worker.said.get("held"), what="work in flight")

    assert worker.stop() == 0

    ready(dispatcher, workers=0)
    assert len(numbers(look, f"{name}-out")) == dispatcher.count("acked")
    assert dispatcher.count("orphaned") == 0


def test_a_stopped_leader_gives_the_lease_back_at_once(programs: Fleet, look, name):
    # A lease so long that only giving it back explains that another leads.
    first = programs.start("dispatcher", lease_ms=60_000)
    ready(first)
    second = programs.start("dispatcher", lease_ms=60_000)
    wait(lambda: "is_leading" in second.said, what="a standby")
    assert not second.said["is_leading"]

    assert first.stop() == 0

    ready(second)


@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_standbys_lead_on_without_loss_when_leaders_stop_in_order(
    programs: Fleet, look, name, source_kind
):
    dispatchers = [programs.start("dispatcher", source_kind=source_kind) for _ in range(3)]
    for _ in range(2):
        programs.start("worker", handler=f"{HANDLERS}:copy")
    wait(lambda: any(each.said.get("is_leading") for each in dispatchers), what="a leader")
    if source_kind == "pubsub":
        listening(look, f"{name}-in", count=3)

    total = 0
    while len(dispatchers) > 1:
        leader = next(each for each in dispatchers if each.said.get("is_leading"))
        ready(leader, workers=2)
        send(look, source_kind, f"{name}-in", ({"n": n} for n in range(total, total + 2_000)))
        total += 2_000
        leader.stop()
        dispatchers.remove(leader)
        wait(lambda: any(each.said.get("is_leading") for each in dispatchers), what="a leader")
    wait(lambda: look.xlen(f"{name}-out") >= total, what="all of them")

    assert sorted(numbers(look, f"{name}-out")) == list(range(total))
    assert sum(each.count("lost") + each.count("gaps") for each in dispatchers) == 0


def test_metrics_and_health_are_served(programs: Fleet, name):
    port = free_port()
    dispatcher = programs.start("dispatcher", metrics_port=port)
    ready(dispatcher)

    def get(path: str) -> str:
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            return wire.makefile("rb").read().decode()

    assert "waterclock_dispatch_is_leading 1.0" in get("/metrics")
    assert '"is_healthy": true' in get("/health")
    assert get("/else").startswith("HTTP/1.1 404")
