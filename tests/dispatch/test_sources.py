"""The sources with real processes: what is kept, given up and counted, and taken over."""

import json

import pytest
from redis.client import PubSub

from tests.cli.nodes import running
from tests.dispatch.programs import Fleet, fleet, wait
from tests.dispatch.traffic import SOURCE_KINDS, numbers, ready, send
from waterclock.client._sync.client import connect_blocking
from waterclock.dispatch.core.identity import parse_marker

HANDLERS = "tests.dispatch.work_handlers"
QUICK = {"lease_ms": 500, "deadline_ms": 500, "silence_ms_max": 500, "heartbeat_ms": 100}


@pytest.fixture
def programs(server, name, tmp_path):
    """Give what starts programs that share keys of their own."""
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    with fleet(tmp_path, **config, source=f"{name}-in", **QUICK) as programs:
        yield programs


@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_more_than_fits_into_memory_waits_in_redis(programs: Fleet, look, name, source_kind):
    dispatcher = programs.start("dispatcher", source_kind=source_kind, queue_messages_max=1_000)
    ready(dispatcher)
    send(look, source_kind, f"{name}-in", ({"n": n} for n in range(5_000)))
    if source_kind == "pubsub":
        wait(lambda: dispatcher.count("received") == 5_000, what="stored batches in Redis")
        assert dispatcher.said["queued"] < 2_000

    programs.start("worker", handler=f"{HANDLERS}:copy")
    wait(lambda: dispatcher.count("acked") == 5_000, what="all of them")

    assert sorted(numbers(look, f"{name}-out")) == list(range(5_000))
    assert dispatcher.count("lost") == 0


def test_what_no_limit_has_room_for_is_lost_and_counted(programs: Fleet, look, name):
    dispatcher = programs.start(
        "dispatcher", source_kind="pubsub", queue_messages_max=1_000, backlog_messages_max=1_000
    )
    ready(dispatcher)
    for start in range(0, 8_000, 100):
        send(look, "pubsub", f"{name}-in", ({"n": n} for n in range(start, start + 100)))

    def all_heard() -> bool:
        return dispatcher.count("received") + dispatcher.count("lost") == 8_000

    wait(all_heard, what="all heard")
    kept = dispatcher.count("received")
    assert 2_000 <= kept < 8_000
    programs.start("worker", handler=f"{HANDLERS}:copy")
    wait(lambda: dispatcher.count("acked") == kept, what="all that was kept")

    written = numbers(look, f"{name}-out")
    assert len(set(written)) == len(written) == kept


def test_a_successor_finds_all_stored_batches_also_those_that_had_no_room(
    programs: Fleet, look, name
):
    first = programs.start("dispatcher", source_kind="pubsub", queue_messages_max=1_000)
    ready(first)
    send(look, "pubsub", f"{name}-in", ({"n": n} for n in range(5_000)))
    wait(lambda: first.count("received") == 5_000, what="stored batches in Redis")
    first.kill()

    second = programs.start("dispatcher", source_kind="pubsub", queue_messages_max=1_000)
    programs.start("worker", handler=f"{HANDLERS}:copy")
    wait(lambda: look.xlen(f"{name}-out") >= 5_000, what="all of them")
    wait(lambda: not look.hlen(f"{{{name}}}:batches"), what="no stored batch")

    assert sorted(numbers(look, f"{name}-out")) == list(range(5_000))
    # Nobody listened between the two: that is told, though nothing was published then.
    assert second.count("gaps") == 1


@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_what_was_dead_lettered_is_not_dead_lettered_again_by_a_successor(
    programs: Fleet, look, name, source_kind
):
    first = programs.start("dispatcher", source_kind=source_kind)
    worker = programs.start("worker", handler=f"{HANDLERS}:picky_and_slow", concurrency=2)
    ready(first, workers=1)
    # Together, so that they are in one stored batch, which the slow one keeps.
    send(look, source_kind, f"{name}-in", [{"n": 1, "do": "permanent"}, {"n": 2, "seconds": 60}])
    wait(lambda: first.count("dead_lettered") == 1, what="a dead letter")
    first.kill()
    worker.kill()

    second = programs.start("dispatcher", source_kind=source_kind)
    programs.start("worker", handler=f"{HANDLERS}:copy")
    wait(lambda: second.count("acked") == 1, what="the other one")

    dead = f"{{{name}-in}}:dead" if source_kind == "stream" else f"{{{name}}}:dead"
    assert [json.loads(f[b"body"])["n"] for _, f in look.xrange(dead)] == [1]
    assert numbers(look, f"{name}-out") == [2]


def test_a_stream_that_was_deleted_is_begun_anew(programs: Fleet, look, name):
    dispatcher = programs.start("dispatcher")
    programs.start("worker", handler=f"{HANDLERS}:copy")
    ready(dispatcher, workers=1)
    send(look, "stream", f"{name}-in", [{"n": 1}])
    wait(lambda: dispatcher.count("acked") == 1, what="the first")

    look.delete(f"{name}-in")
    send(look, "stream", f"{name}-in", [{"n": 2}])
    wait(lambda: dispatcher.count("acked") == 2, what="the second")

    assert numbers(look, f"{name}-out") == [1, 2]
    assert dispatcher.count("elections") == 1


def test_entries_that_were_read_while_the_answer_was_lost_are_found(programs: Fleet, look, name):
    dispatcher = programs.start("dispatcher")
    programs.start("worker", handler=f"{HANDLERS}:copy")
    ready(dispatcher, workers=1)
    # In one step, as the leader's own script would have done it, before it hears of the entry.
    with look.pipeline(transaction=True) as at_once:
        at_once.xadd(f"{name}-in", {"data": json.dumps({"n": 1})})
        at_once.xreadgroup("waterclock", "dispatcher", {f"{name}-in": ">"})
        at_once.execute()

    assert look.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") >= 2
    wait(lambda: dispatcher.count("acked") == 1, what="an acknowledgement")

    assert numbers(look, f"{name}-out") == [1]
    assert dispatcher.count("elections") == 1


def test_entries_trimmed_before_they_were_done_are_counted_as_lost(programs: Fleet, look, name):
    first = programs.start("dispatcher")
    ready(first)
    send(look, "stream", f"{name}-in", ({"n": n} for n in range(10)))
    wait(lambda: first.count("received") == 10, what="all read")
    first.kill()
    look.xtrim(f"{name}-in", maxlen=4, approximate=False)

    second = programs.start("dispatcher")
    programs.start("worker", handler=f"{HANDLERS}:copy")
    wait(lambda: second.count("acked") == 4, what="those that are left")

    assert second.count("lost") == 6
    assert sorted(numbers(look, f"{name}-out")) == [6, 7, 8, 9]


def test_foreign_words_on_the_channel_of_markers_and_foreign_stored_batches_hurt_nobody(
    programs: Fleet, look, name
):
    look.hset(f"{{{name}}}:batches", b"p" * 16, b"not a stored batch")
    look.zadd(f"{{{name}}}:pending", {b"p" * 16: 1})
    dispatcher = programs.start("dispatcher", source_kind="pubsub")
    programs.start("worker", handler=f"{HANDLERS}:copy")
    ready(dispatcher, workers=1)

    look.publish(f"{{{name}}}:markers", b"hello")
    send(look, "pubsub", f"{name}-in", ({"n": n} for n in range(100)))
    wait(lambda: dispatcher.count("acked") == 100, what="all of them")

    assert sorted(numbers(look, f"{name}-out")) == list(range(100))


@pytest.mark.parametrize("turn", range(3))
def test_a_standby_that_just_came_goes_on_where_the_leader_stopped(
    programs: Fleet, look, name, turn
):
    first = programs.start("dispatcher", source_kind="pubsub")
    programs.start("worker", handler=f"{HANDLERS}:copy")
    ready(first, workers=1)
    send(look, "pubsub", f"{name}-in", ({"n": n} for n in range(500)))
    with look.pubsub(ignore_subscribe_messages=True) as markers:
        markers.subscribe(f"{{{name}}}:markers")
        second = programs.start("dispatcher", source_kind="pubsub")
        wait(lambda: heard_standby(markers), what="a standby that listens")
    send(look, "pubsub", f"{name}-in", ({"n": n} for n in range(500, 1_000)))
    wait(lambda: look.xlen(f"{name}-out") >= 1_000, what="all so far")
    first.kill()
    send(look, "pubsub", f"{name}-in", ({"n": n} for n in range(1_000, 1_500)))
    wait(lambda: look.xlen(f"{name}-out") >= 1_500, what="all of them")
    wait(lambda: not second.said["queued"] + second.said["pending"], what="nothing left to do")

    assert sorted(numbers(look, f"{name}-out")) == list(range(1_500))
    assert second.count("lost") + second.count("gaps") == 0


def heard_standby(markers: PubSub) -> bool:
    """Say whether a dispatcher that does not lead has published its marker, behind which it counts
    messages as the leader does."""
    while (message := markers.get_message()) is not None:
        if parse_marker(message["data"]).name.epoch == 0:
            return True
    return False


def test_a_topic_of_a_node_can_be_where_messages_go(programs: Fleet, look, name, tmp_path):
    with running(tmp_path / "node") as node:
        dispatcher = programs.start("dispatcher")
        programs.start(
            "worker", handler=f"{HANDLERS}:copy", sink="waterclock", servers=[node.address],
            topic="processed",
        )  # fmt: skip
        ready(dispatcher, workers=1)
        send(look, "stream", f"{name}-in", ({"n": n} for n in range(500)))
        wait(lambda: dispatcher.count("acked") == 500, what="all of them")

        with connect_blocking(node.address) as client:
            values = [message.value for message in client.replay("processed")]
    assert sorted(json.loads(value or b"")["n"] for value in values) == list(range(500))
