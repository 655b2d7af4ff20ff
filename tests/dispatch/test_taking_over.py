"""Who should lead next, and what a leader does with what it finds."""

import socket

import pytest

from tests.dispatch.programs import Fleet, fleet, wait
from tests.dispatch.traffic import numbers, ready, send

HANDLERS = "tests.dispatch.work_handlers"


@pytest.fixture
def programs(server, name, tmp_path):
    """Give what starts programs that share keys of their own."""
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    with fleet(tmp_path, **config, source=f"{name}-in", lease_ms=1_000) as programs:
        yield programs


def test_a_damaged_position_ends_nobody_and_is_counted(programs: Fleet, look, name):
    look.set(f"{{{name}}}:position", b"no position")

    dispatcher = programs.start("dispatcher", source_kind="pubsub")
    programs.start("worker", handler=f"{HANDLERS}:copy")
    ready(dispatcher, workers=1)
    wait(lambda: dispatcher.count("gaps") >= 1, what="it is counted")
    send(look, "pubsub", f"{name}-in", ({"n": n} for n in range(100)))
    wait(lambda: dispatcher.count("acked") == 100, what="it works on")

    assert sorted(numbers(look, f"{name}-out")) == list(range(100))


def test_a_foreign_lock_is_told_once_and_led_past_once_it_is_gone(programs: Fleet, look, name):
    look.set(f"{{{name}}}:lock", "somebody else's")

    dispatcher = programs.start("dispatcher", source_kind="stream")
    wait(lambda: b"waiting for the lease" in dispatcher.log.read_bytes(), what="it is told")
    look.delete(f"{{{name}}}:lock")
    ready(dispatcher)

    assert dispatcher.log.read_bytes().count(b"waiting for the lease in Redis: ") == 1
    assert b"the lease in Redis is there, after " in dispatcher.log.read_bytes()


def test_what_waited_in_redis_for_longer_than_the_window_is_written(programs: Fleet, look, name):
    window = {"window_ms": 1_000, "bucket_ms": 1_000}
    dispatcher = programs.start(
        "dispatcher", source_kind="pubsub", queue_messages_max=1_000, **window
    )
    ready(dispatcher)
    send(look, "pubsub", f"{name}-in", ({"n": n} for n in range(5_000)))
    wait(lambda: dispatcher.count("received") == 5_000, what="stored batches in Redis")
    seconds, _ = look.time()
    wait(lambda: look.time()[0] > seconds + 3, what="the end of the window")

    programs.start("worker", handler=f"{HANDLERS}:copy", **window)
    done = ("acked", "dead_lettered")
    wait(lambda: sum(map(dispatcher.count, done)) == 5_000, what="the end of all of them")

    written = numbers(look, f"{name}-out")
    assert len(set(written)) == len(written) == dispatcher.count("acked")
    # Only what was in the leader's memory has got too old: a page, and the stored batch it ends in.
    assert len(written) >= 3_500


def test_a_source_that_is_no_stream_is_no_other_leader(programs: Fleet, look, name):
    look.set(f"{name}-in", "not a stream")

    dispatcher = programs.start("dispatcher", source_kind="stream")
    wait(lambda: b"it could not lead" in dispatcher.log.read_bytes(), what="it steps down")
    look.delete(f"{name}-in")
    programs.start("worker", handler=f"{HANDLERS}:copy")
    ready(dispatcher, workers=1)
    send(look, "stream", f"{name}-in", ({"n": n} for n in range(10)))
    wait(lambda: dispatcher.count("acked") == 10, what="it leads after all")

    assert dispatcher.count("stale") == 0


def test_who_says_no_hello_is_refused_if_so_wished(programs: Fleet, name):
    dispatcher = programs.start("dispatcher", source_kind="stream", legacy_credit=0)
    ready(dispatcher)

    with socket.create_connection(("127.0.0.1", dispatcher.said["port"])) as wire:
        wire.settimeout(10)
        said = wire.recv(1_000)

    assert b"said no hello" in said
    wait(lambda: dispatcher.count("bad_connections") == 1, what="it is counted")
