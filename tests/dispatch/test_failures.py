"""What breaks, with real processes: leaders, workers, Redis, and the cables between them.

The guarantee is always the same: with the stream source every message ends up in the output once.
"""

import json
import os
import socket
import threading

import pytest

from benchmarks.peers.server import free_port
from tests.dispatch.programs import Fleet, fleet, wait
from tests.dispatch.redis_servers import replicated, single
from tests.dispatch.traffic import (
    SOURCE_KINDS,
    keep_trying,
    leader_of,
    listening,
    numbers,
    ready,
    send,
)
from tests.kit.network import wired
from waterclock.dispatch.redis.keys import beside

HANDLERS = "tests.dispatch.work_handlers"
QUICK = {"lease_ms": 500, "deadline_ms": 500, "silence_ms_max": 500, "heartbeat_ms": 100}


@pytest.fixture
def programs(server, name, tmp_path):
    """Give what starts programs that share keys of their own, and are quick to notice things."""
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    with fleet(tmp_path, **config, source=f"{name}-in", **QUICK) as programs:
        yield programs


# Leaders


@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_a_killed_leader_is_followed_and_nothing_is_lost_or_written_twice(
    programs: Fleet, look, name, source_kind
):
    dispatchers = [programs.start("dispatcher", source_kind=source_kind) for _ in range(2)]
    for _ in range(2):
        programs.start("worker", handler=f"{HANDLERS}:copy")
    first = leader_of(dispatchers)
    if source_kind == "pubsub":
        listening(look, f"{name}-in", count=2)
    ready(first, workers=2)

    send(look, source_kind, f"{name}-in", ({"n": n} for n in range(3_000)))
    first.kill()
    send(look, source_kind, f"{name}-in", ({"n": n} for n in range(3_000, 6_000)))
    second = next(each for each in dispatchers if each is not first)
    wait(lambda: look.xlen(f"{name}-out") >= 6_000, what="all of them")
    wait(lambda: not second.said["queued"] + second.said["pending"], what="nothing left to do")

    assert sorted(numbers(look, f"{name}-out")) == list(range(6_000))
    assert second.count("lost") + second.count("gaps") == 0


@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_a_leader_that_slept_past_its_lease_wakes_to_find_that_it_leads_no_more(
    programs: Fleet, look, name, source_kind
):
    dispatchers = [programs.start("dispatcher", source_kind=source_kind) for _ in range(2)]
    for _ in range(2):
        programs.start("worker", handler=f"{HANDLERS}:copy")
    first = leader_of(dispatchers)
    second = next(each for each in dispatchers if each is not first)
    if source_kind == "pubsub":
        listening(look, f"{name}-in", count=2)
    ready(first, workers=2)

    send(look, source_kind, f"{name}-in", ({"n": n} for n in range(2_000)))
    first.pause()
    old_epoch = first.said["epoch"]
    ready(second, workers=2)
    assert second.said["epoch"] > old_epoch
    send(look, source_kind, f"{name}-in", ({"n": n} for n in range(2_000, 4_000)))
    first.resume()
    send(look, source_kind, f"{name}-in", ({"n": n} for n in range(4_000, 6_000)))
    wait(lambda: not first.said["is_leading"], what="that it notices")
    wait(lambda: look.xlen(f"{name}-out") >= 6_000, what="all of them")
    wait(lambda: not second.said["queued"] + second.said["pending"], what="nothing left to do")

    assert sorted(numbers(look, f"{name}-out")) == list(range(6_000))
    assert look.get(beside(f"{name}-out", f"fence:{name}")) == str(second.said["epoch"]).encode()
    assert first.count("elections") == 1


# Redis


def test_redis_killed_and_started_again_loses_nothing_of_a_stream(tmp_path):
    with single(tmp_path / "redis", appendfsync="always") as server:
        config = {"redis": [server.address], "output": "out", "source": "in", **QUICK}
        with fleet(tmp_path / "programs", **config) as programs:
            dispatcher = programs.start("dispatcher")
            programs.start("worker", handler=f"{HANDLERS}:copy")
            ready(dispatcher, workers=1)
            look = server.client()
            send(look, "stream", "in", ({"n": n} for n in range(3_000)))

            server.kill()
            server.start()
            send(look, "stream", "in", ({"n": n} for n in range(3_000, 4_000)))
            wait(lambda: look.xlen("out") >= 4_000, what="all of them")
            wait(lambda: not look.xpending("in", "waterclock")["pending"], what="nothing left")

            assert sorted(numbers(look, "out")) == list(range(4_000))
            assert look.xlen(beside("in", "dead")) == 0


def test_redis_restarted_under_pub_sub_is_a_gap_that_is_counted_and_what_was_kept_is_done(tmp_path):
    with single(tmp_path / "redis", appendfsync="always") as server:
        config = {"redis": [server.address], "output": "out", "source": "in", **QUICK}
        with fleet(tmp_path / "programs", **config, source_kind="pubsub") as programs:
            dispatcher = programs.start("dispatcher")
            ready(dispatcher)
            look = server.client()
            listening(look, "in")
            send(look, "pubsub", "in", ({"n": n} for n in range(1_000)))
            wait(lambda: dispatcher.count("received") == 1_000, what="stored batches in Redis")

            server.kill()
            server.start()
            wait(lambda: dispatcher.count("gaps"), what="that the gap is counted")
            listening(look, "in")
            leader_of([dispatcher])
            send(look, "pubsub", "in", ({"n": n} for n in range(1_000, 2_000)))
            programs.start("worker", handler=f"{HANDLERS}:copy")
            wait(lambda: look.xlen("out") >= 2_000, what="all that was kept")

            assert sorted(numbers(look, "out")) == list(range(2_000))


def test_a_replica_that_is_promoted_has_everything_that_was_promised(tmp_path):
    with replicated(tmp_path / "redis") as (master, replica):
        config = {"redis": [master.address, replica.address], "output": "out", "source": "in"}
        with fleet(tmp_path / "programs", **config, **QUICK) as programs:
            dispatcher = programs.start("dispatcher")
            programs.start("worker", handler=f"{HANDLERS}:copy", wait_replicas=0)
            ready(dispatcher, workers=1)
            before = master.client()
            send(before, "stream", "in", ({"n": n} for n in range(2_000)))
            assert before.wait(1, 10_000) == 1  # the publisher's part of the promise

            master.kill()
            after = replica.client()
            after.execute_command("REPLICAOF NO ONE")
            send(after, "stream", "in", ({"n": n} for n in range(2_000, 3_000)))
            wait(lambda: after.xlen("out") >= 3_000, what="all of them")
            wait(lambda: not after.xpending("in", "waterclock")["pending"], what="nothing left")

            assert sorted(numbers(after, "out")) == list(range(3_000))


def test_a_write_that_must_reach_a_replica_is_not_acknowledged_before_it_has(tmp_path):
    with replicated(tmp_path / "redis") as (master, replica):
        config = {"redis": [master.address], "output": "out", "source": "in", **QUICK}
        with fleet(tmp_path / "programs", **config) as programs:
            dispatcher = programs.start("dispatcher")
            worker = programs.start("worker", wait_replicas=1, wait_ms=100)
            ready(dispatcher, workers=1)
            look = master.client()
            replica.pause()
            send(look, "stream", "in", [{"n": 1}])
            wait(lambda: worker.count("retried"), what="a write that is not enough")
            assert dispatcher.count("acked") == 0

            replica.resume()
            wait(lambda: dispatcher.count("acked") == 1, what="an acknowledgement")

            assert numbers(look, "out") == [1]


# Workers


def test_a_worker_killed_before_it_wrote_is_replaced_by_another(
    programs: Fleet, look, name, tmp_path
):
    dispatcher = programs.start("dispatcher")
    for _ in range(2):
        programs.start("worker", handler=f"{HANDLERS}:die_first")
    ready(dispatcher, workers=2)

    messages = [{"n": n} for n in range(500)]
    messages[250]["die"] = str(tmp_path / "died")  # type: ignore[assignment]
    send(look, "stream", f"{name}-in", messages)
    wait(lambda: dispatcher.count("acked") == 500, what="all of them")

    assert sorted(numbers(look, f"{name}-out")) == list(range(500))
    assert dispatcher.count("orphaned") > 0


def test_a_worker_killed_after_it_wrote_and_before_it_said_so_leaves_one_entry_each(
    programs: Fleet, look, name
):
    port = free_port()
    with wired(port, host="127.0.0.2", own_port=port) as cable:
        dispatcher = programs.start("dispatcher", port=port, advertise_host="127.0.0.2")
        worker = programs.start("worker", handler=f"{HANDLERS}:slow")
        ready(dispatcher, workers=1)
        send(look, "stream", f"{name}-in", ({"n": n, "seconds": 0.3} for n in range(8)))
        wait(lambda: worker.said["held"] == 8, what="work in flight")

        cable.cut("hold")  # the acknowledgements stay in the cable
        wait(lambda: look.xlen(f"{name}-out") == 8, what="all written")
        worker.kill()
        cable.cut("reset")
        cable.heal()
        other = programs.start("worker", handler=f"{HANDLERS}:copy")
        wait(lambda: dispatcher.count("acked") == 8, what="all acknowledged")

        assert sorted(numbers(look, f"{name}-out")) == list(range(8))
        wait(lambda: other.count("repeats") == 8, what="that they were found")


def test_a_slow_handler_keeps_its_message_as_long_as_it_runs(programs: Fleet, look, name):
    dispatcher = programs.start("dispatcher", deadline_ms=300)
    workers = [programs.start("worker", handler=f"{HANDLERS}:slow") for _ in range(2)]
    ready(dispatcher, workers=2)

    send(look, "stream", f"{name}-in", [{"n": 1, "seconds": 1.5}])
    wait(lambda: dispatcher.count("acked") == 1, what="an acknowledgement")

    assert dispatcher.count("handed_out") == 1
    assert sum(worker.count("extended") for worker in workers) > 0


def test_a_handler_that_is_stuck_loses_its_message_to_another_worker(
    programs: Fleet, look, name, tmp_path
):
    dispatcher = programs.start("dispatcher", deadline_ms=300)
    stuck = programs.start("worker", handler=f"{HANDLERS}:slow", handler_ms_max=400, concurrency=1)
    ready(dispatcher, workers=1)
    send(look, "stream", f"{name}-in", [{"n": 1, "seconds": 2}])
    wait(lambda: stuck.said["held"] == 1, what="the message in the wrong hands")

    programs.start("worker", handler=f"{HANDLERS}:copy")
    wait(lambda: dispatcher.count("acked") == 1, what="an acknowledgement")

    assert look.xlen(f"{name}-out") == 1
    assert dispatcher.count("expired") >= 1


def test_a_message_that_kills_every_worker_is_dead_lettered_and_others_are_not(
    programs: Fleet, look, name
):
    dispatcher = programs.start("dispatcher", deliveries_max=4)
    workers = [programs.start("worker", handler=f"{HANDLERS}:deadly") for _ in range(2)]
    ready(dispatcher, workers=2)
    messages = [{"n": n, "deadly": n == 50} for n in range(100)]
    send(look, "stream", f"{name}-in", messages)

    def work_on() -> bool:
        for at, worker in enumerate(workers):
            if not worker.is_running:
                workers[at] = programs.start("worker", handler=f"{HANDLERS}:deadly")
        return dispatcher.count("acked") + dispatcher.count("dead_lettered") == 100

    wait(work_on, what="an end for each")

    dead_letters = [
        json.loads(f[b"body"])["n"] for _, f in look.xrange(beside(f"{name}-in", "dead"))
    ]
    assert 50 in dead_letters
    assert sorted(numbers(look, f"{name}-out") + dead_letters) == list(range(100))
    assert dead_letters == [50]


# The port


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x01\x63\x00\x00\x00\x00",
        b"\x01\x08\xff\xff\xff\xff",
        b"\x01\x00\x00\x00\x00\x01x",
        b"\x01\x02\x00\x00\x00\x0d" + b"\xff" * 13,
        os.urandom(4_096).replace(b"\x01", b"\x02"),
    ],
    ids=["http", "unknown command", "over-long", "not for a leader", "bad hello", "noise"],
)
def test_garbage_on_the_port_closes_that_connection_and_no_other(
    programs: Fleet, look, name, garbage
):
    dispatcher = programs.start("dispatcher")
    programs.start("worker", handler=f"{HANDLERS}:copy")
    ready(dispatcher, workers=1)

    with socket.create_connection(("127.0.0.1", dispatcher.said["port"])) as wire:
        wire.settimeout(30)
        wire.sendall(garbage)
        answer = wire.makefile("rb").read()
    send(look, "stream", f"{name}-in", ({"n": n} for n in range(100)))
    wait(lambda: dispatcher.count("acked") == 100, what="all of them")

    assert answer[:2] == b"\x01\x09"  # CLOSE, and why
    assert len(answer) > 14
    wait(lambda: dispatcher.count("bad_connections") == 1, what="that it is counted")
    assert dispatcher.said["workers"] == 1
    assert dispatcher.count("orphaned") == 0


# Cables


@pytest.mark.parametrize("mode", ["hold", "reset"])
def test_a_cut_between_leader_and_worker(programs: Fleet, look, name, mode):
    port = free_port()
    with wired(port, host="127.0.0.2", own_port=port) as cable:
        dispatcher = programs.start("dispatcher", port=port, advertise_host="127.0.0.2")
        programs.start("worker", handler=f"{HANDLERS}:copy")
        ready(dispatcher, workers=1)
        feed = threading.Thread(
            target=send, args=(look, "stream", f"{name}-in", ({"n": n} for n in range(3_000)))
        )
        feed.start()
        cable.cut(mode)
        ready(dispatcher, workers=0)
        feed.join()
        cable.heal()
        wait(lambda: dispatcher.count("acked") == 3_000, what="all of them")

        assert sorted(numbers(look, f"{name}-out")) == list(range(3_000))


@pytest.mark.parametrize("mode", ["hold", "reset"])
def test_a_cut_between_the_leader_and_redis(programs: Fleet, server, look, name, mode):
    with wired(server.port) as cable:
        first = programs.start("dispatcher", redis=[cable.address])
        programs.start("worker", handler=f"{HANDLERS}:copy")
        ready(first, workers=1)
        second = programs.start("dispatcher")
        wait(lambda: "is_leading" in second.said, what="a standby")
        send(look, "stream", f"{name}-in", ({"n": n} for n in range(2_000)))

        cable.cut(mode)
        ready(second, workers=1)
        send(look, "stream", f"{name}-in", ({"n": n} for n in range(2_000, 4_000)))
        wait(lambda: look.xlen(f"{name}-out") >= 4_000, what="all of them")
        assert not first.said["is_leading"]
        cable.heal()
        wait(lambda: not look.xpending(f"{name}-in", "waterclock")["pending"], what="none left")

        assert sorted(numbers(look, f"{name}-out")) == list(range(4_000))


@pytest.mark.parametrize("mode", ["hold", "reset"])
def test_a_cut_between_a_worker_and_redis(programs: Fleet, server, look, name, mode):
    with wired(server.port) as cable:
        dispatcher = programs.start("dispatcher", deliveries_max=100)
        programs.start("worker", handler=f"{HANDLERS}:copy", redis=[cable.address])
        ready(dispatcher, workers=1)

        cable.cut(mode)
        keep_trying(look, f"{name}-in", ({"n": n} for n in range(500)))
        wait(lambda: dispatcher.said["pending"], what="work in flight")
        cable.heal()
        wait(lambda: dispatcher.count("acked") == 500, what="all of them")

        assert sorted(numbers(look, f"{name}-out")) == list(range(500))
