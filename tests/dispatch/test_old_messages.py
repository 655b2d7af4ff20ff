"""Messages that waited for longer than dedup looks back, and groups that share a stream."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.dispatch.programs import fleet, wait
from tests.dispatch.traffic import numbers, ready, send
from waterclock.dispatch.core.identity import known_until_ms
from waterclock.dispatch.redis.keys import beside

HANDLERS = "tests.dispatch.work_handlers"


def test_what_waited_in_the_stream_for_longer_than_the_window_is_written_once(
    server, name, look, tmp_path
):
    """The ids are of 1970: no worker was there for years."""
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    for n in range(1, 101):
        look.xadd(f"{name}-in", {"data": json.dumps({"n": n})}, id=f"{n}-1")
    with fleet(tmp_path, **config, source=f"{name}-in") as programs:
        dispatcher = programs.start("dispatcher")
        for _ in range(2):
            programs.start("worker", handler=f"{HANDLERS}:copy")
        wait(lambda: dispatcher.count("acked") == 100, what="100 acknowledgements")

    assert sorted(numbers(look, f"{name}-out")) == list(range(1, 101))
    assert look.xlen(beside(f"{name}-in", "dead")) == 0


def test_two_groups_that_share_a_stream_do_not_refuse_each_other(server, name, look, tmp_path):
    """The second is elected later, so its epochs are higher than those of the first."""
    shared = {"redis": [server.address], "source": f"{name}-in"}
    first_of = {"prefix": f"{name}-1", "group": "1", "output": f"{name}-out-1"}
    second_of = {"prefix": f"{name}-2", "group": "2", "output": f"{name}-out-2"}
    third_of = {"prefix": f"{name}-3", "source": f"{name}-other", "output": f"{name}-out-1"}
    leaders = []
    with (
        fleet(tmp_path / "a", **shared, **first_of) as first,
        fleet(tmp_path / "b", **shared, **second_of) as second,
        fleet(tmp_path / "c", **{**shared, **third_of}) as third,
    ):
        for programs in (first, second, third):
            leader = programs.start("dispatcher")
            programs.start("worker", handler=f"{HANDLERS}:copy")
            ready(leader, workers=1)
            leaders.append(leader)
        send(look, "stream", f"{name}-in", ({"n": n} for n in range(100)))
        send(look, "stream", f"{name}-other", ({"n": n} for n in range(100, 200)))
        wait(lambda: all(each.count("acked") == 100 for each in leaders), what="300 done")
        assert [leader.count("stale") for leader in leaders] == [0, 0, 0]

    assert sorted(numbers(look, f"{name}-out-1")) == list(range(200))
    assert sorted(numbers(look, f"{name}-out-2")) == list(range(100))


@given(birth_ms=st.integers(0, 10**13), bucket_ms=st.integers(1, 10**6), window_ms=st.integers(1))
def test_a_message_is_known_for_the_window_at_least_and_a_bucket_more_at_most(
    birth_ms, bucket_ms, window_ms
):
    until_ms = known_until_ms(birth_ms, bucket_ms=bucket_ms, window_ms=window_ms)

    assert window_ms < until_ms - birth_ms <= window_ms + bucket_ms
