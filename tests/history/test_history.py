"""The memory of the last hour and day: what is folded, dropped, and found again after a restart."""

import math
import struct
import zlib
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from waterclock.history.codec import HEADER_BYTES, MAGIC, VERSION, decode, encode
from waterclock.history.history import HOUR_SLOTS, MINUTE_MS, STEP_MS, History, Sample
from waterclock.history.series import NODE, TOPICS_MAX

MINUTE = 30_000_000
START_MS = MINUTE * MINUTE_MS
NAMES = [series.name for series in NODE]


def sample(
    values: Mapping[str, float] | None = None,
    topics: Mapping[str, Sequence[float]] | None = None,
) -> Sample:
    known = values or {}
    return Sample([known.get(name, 0.0) for name in NAMES], topics or {})


@pytest.fixture
def history() -> History:
    return History()


def test_a_minute_has_the_mean_of_rates_the_last_of_levels_and_the_worst_of_the_worst(history):
    history.take(sample({"in": 4.0, "lag": 9.0, "latenessMaxMs": 50.0}), START_MS)
    history.take(sample({"in": 8.0, "lag": 3.0, "latenessMaxMs": 5.0}), START_MS + STEP_MS)

    day = history.of_node(is_day=True)
    assert (day.step_ms, day.end_ms) == (MINUTE_MS, START_MS + MINUTE_MS)
    last = {name: values[-1] for name, values in day.series.items()}
    assert (last["in"], last["lag"], last["latenessMaxMs"]) == (6.0, 3.0, 50.0)
    assert history.of_node(is_day=False).series["in"][-3:] == [None, 4.0, 8.0]


def test_what_nobody_sampled_is_unknown_and_not_zero(history):
    history.take(sample({"in": 1.0}), START_MS)
    history.take(sample({"in": 2.0}), START_MS + 4 * STEP_MS)

    assert history.of_node(is_day=False).series["in"][-6:] == [None, 1.0, None, None, None, 2.0]


@pytest.mark.parametrize("back", [1, 10, HOUR_SLOTS, 10 * HOUR_SLOTS])
def test_a_clock_that_was_set_back_drops_what_was_written_ahead_of_it(history, back):
    for step in range(20):
        history.take(sample({"in": step}), START_MS + step * STEP_MS)
    history.take(sample({"in": 99.0}), START_MS + (19 - back) * STEP_MS)

    values = history.of_node(is_day=False).series["in"]
    assert values[-1] == 99.0
    assert values[-2] == (18.0 - back if back < 19 else None)


def test_a_busier_topic_takes_the_place_of_the_one_that_was_least_busy(history):
    crowd = {f"t{n}": (10.0 + n, *[0.0] * 5) for n in range(TOPICS_MAX)}
    history.take(sample(topics=crowd), START_MS)
    history.take(
        sample(topics=crowd | {"late": (500.0, 1.0, 2.0, 3.0, 0.0, math.nan)}), START_MS + STEP_MS
    )

    assert history.of_topic("late", is_day=False).series["in"][-2:] == [None, 500.0]
    assert history.of_topic("t0", is_day=False).series == {}
    assert history.of_topic("t1", is_day=False).series["in"][-1] == 11.0
    assert len(history.topics) == TOPICS_MAX


def test_a_topic_where_timers_fire_and_nobody_reads_is_busy_too(history):
    history.take(sample(topics={"rings": (0.0, 0.0, 0.0, 9.0, 3.0, 25.0)}), START_MS)

    rings = history.of_topic("rings", is_day=True).series
    assert (rings["fired"][-1], rings["latenessMaxMs"][-1]) == (3.0, 25.0)


def test_a_file_brings_everything_back(history):
    for step in range(30):
        topics = {"orders": (step, 2.0, 3.0, 4.0, 5.0, 6.0)}
        history.take(sample({"in": step, "cpu": 0.25}, topics), START_MS + step * STEP_MS)
    found = decode(encode(history))

    assert found is not None
    assert found.topics == history.topics
    for is_day in (False, True):
        assert found.of_node(is_day=is_day) == history.of_node(is_day=is_day)
        orders = found.of_topic("orders", is_day=is_day)
        assert orders == history.of_topic("orders", is_day=is_day)


def test_a_file_that_is_not_whole_is_not_read(history):
    history.take(sample({"in": 1.0}), START_MS)
    data = encode(history)

    rng = np.random.default_rng(7)
    assert decode(b"") is None
    assert decode(data[:-1]) is None
    assert decode(data + b"x") is None
    for at in [*range(HEADER_BYTES), *rng.integers(HEADER_BYTES, len(data), 20).tolist()]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        assert decode(bytes(damaged)) is None


def sealed(head: bytes, numbers: bytes, *, body: bytes | None = None, **given: int) -> bytes:
    """Return a file whose checksums hold, whatever stands in it."""
    packed = zlib.compress(head + numbers) if body is None else body
    head_len = given.get("head_len", len(head))
    plain_len = given.get("plain_len", len(head + numbers))
    sizes = (head_len, plain_len, len(packed), crc32c(packed))
    fields = struct.pack("<8sH2xIIII", MAGIC, VERSION, *sizes)
    return fields + struct.pack("<I", crc32c(fields)) + packed


def contents(**changes: object) -> bytes:
    known = {"node": ["in"], "topic": [], "topics": [], "newest": [7, 7], "slots": [1, 1]}
    return msgspec.json.encode({**known, **changes})


TWO = bytes(2 * 4)


WRONG = {
    "not packed": sealed(b"", b"", body=b"not packed"),
    "more than it says": sealed(contents(), TWO, plain_len=70),
    "less than it says": sealed(contents(), TWO, plain_len=5_000),
    "all head": sealed(contents(), TWO, head_len=5_000),
    "no text": sealed(b"\xff", b""),
    "no fields": sealed(b"{}", b""),
    "numbers that are cut": sealed(contents(), TWO + b"odd"),
    "too few numbers": sealed(contents(), TWO[4:]),
    "one ring": sealed(contents(newest=[7], slots=[1]), TWO[4:]),
    "slots below none": sealed(contents(slots=[-1, 3]), TWO),
    "beyond all time": sealed(contents(newest=[1 << 70, 7]), TWO),
    "before all time": sealed(contents(newest=[-7, 7]), TWO),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_a_file_that_says_what_cannot_be_is_not_read_though_its_checksums_hold(data):
    assert decode(sealed(contents(), TWO)) is not None
    assert decode(data) is None
