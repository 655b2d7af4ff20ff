"""Who cancels or moves what is pending no more is told what became of it, as long as ids last."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kit.clock import ManualClock
from tests.node.timed_topics import TimedTopics, timed_topics
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig
from waterclock.node.schedule.named_changes import Named
from waterclock.node.schedule.scheduler import ALREADY_FIRED, CANCELLED, DONE, EXPIRED, UNKNOWN
from waterclock.storage.rewrite import Wanted, rewrites

WINDOW_MS = 3_600_000
DEDUP = DedupConfig(window_ms=WINDOW_MS)

OUTCOMES = {
    b"past": ALREADY_FIRED,
    b"now": ALREADY_FIRED,
    b"fired": ALREADY_FIRED,
    b"cancelled": CANCELLED,
    b"expired": EXPIRED,
    b"never": UNKNOWN,
}


def message(
    here: TimedTopics, name: bytes, delay_ms: int | None, *, span_ms: int = 0, key: bytes = b"k"
) -> Message:
    now_ms = here.clock.now_ms()
    due_ms = None if delay_ms is None else Millis(now_ms + delay_ms)
    headers = {"wc-expires-ms": b"%d" % (now_ms + (delay_ms or 0) + span_ms)} if span_ms else None
    return Message(b"v", message_id=name, key=key, headers=headers, due_ms=due_ms)


async def outcomes_of(here: TimedTopics, *names: bytes, key: bytes | None = None) -> list[int]:
    """Return what is told of these, which must not depend on what is asked."""
    named = [Named(name, key) for name in names]
    cancelled = await here.pending.cancel("t", named)
    moved = await here.pending.reschedule("t", named, [here.clock.now_ms() + 1_000])
    assert cancelled.outcomes.tolist() == moved.outcomes.tolist()
    assert cancelled.reached.sum() == moved.reached.sum() == 0
    return [int(outcome) for outcome in cancelled.outcomes]


def roll(here: TimedTopics) -> None:
    for host in here.topics.get("t").partitions:
        host.store.roll(here.clock.now_ms())
        host.store.run_jobs()


def rewrite(here: TimedTopics) -> None:
    """Take all that nobody needs out of the closed segments."""
    for host in here.topics.get("t").partitions:
        wanted = Wanted(keep_from=host.store.end)
        for job in rewrites(host.store, wanted, now_ms=here.clock.now_ms()):
            job.run()
            job.finish()


@asynccontextmanager
async def topics(path: Path, clock: ManualClock) -> AsyncIterator[TimedTopics]:
    async with timed_topics(path, clock, DEDUP) as here:
        yield here


async def live_through(here: TimedTopics, *, allow_duplicate: bool) -> None:
    """Let a message come to each of the ends there are."""
    messages = [
        message(here, b"past", -5_000),
        message(here, b"now", None),
        message(here, b"fired", 1_000),
        message(here, b"cancelled", 1_000),
        message(here, b"expired", 1_000, span_ms=100),
    ]
    await here.publish("t", messages, allow_duplicate=allow_duplicate)
    outcomes, _ = await here.pending.cancel("t", [Named(b"cancelled")])
    assert outcomes.tolist() == [DONE]
    here.clock.advance(2_000)
    assert len(await here.fired("t")) == 3


REWRITES = ("rewritten", "thinned", "twice", "rebuilt")


def expected(turn: str, *, allow_duplicate: bool) -> list[int]:
    """Return what must be told of each of the messages of `OUTCOMES`."""
    if allow_duplicate and turn in REWRITES:
        # Nothing was scheduled, and no repeat is refused: of these nothing is left.
        return list({**OUTCOMES, b"past": UNKNOWN, b"now": UNKNOWN}.values())
    return list(OUTCOMES.values())


@pytest.mark.parametrize("allow_duplicate", [False, True])
@pytest.mark.parametrize(
    "turn", ["nothing", "reopened", "rolled", "rewritten", "thinned", "twice", "rebuilt"]
)
async def test_what_became_of_a_message_is_told_whatever_became_of_its_segment(
    tmp_path, turn, allow_duplicate
):
    clock = ManualClock()
    async with topics(tmp_path, clock) as here:
        await here.create("t")
        if turn == "thinned":
            # Keeps the frame of scheduled messages, and a row in it.
            await here.publish("t", [message(here, b"open", 2 * WINDOW_MS)])
        await live_through(here, allow_duplicate=allow_duplicate)
        if turn not in ("nothing", "reopened"):
            roll(here)
        if turn in REWRITES:
            rewrite(here)
        if turn == "twice":
            await here.publish("t", [message(here, b"more", None)])
            roll(here)
            rewrite(here)
        assert await outcomes_of(here, *OUTCOMES) == expected(turn, allow_duplicate=allow_duplicate)
    if turn == "rebuilt":
        for sidecar in [*tmp_path.rglob("*.ids"), *tmp_path.rglob("*.due")]:
            sidecar.unlink()
    async with topics(tmp_path, clock) as here:
        assert await outcomes_of(here, *OUTCOMES) == expected(turn, allow_duplicate=allow_duplicate)


@pytest.mark.parametrize("allow_duplicate", [False, True])
async def test_it_is_forgotten_with_the_ids(tmp_path, allow_duplicate):
    async with topics(tmp_path, ManualClock()) as here:
        await here.create("t")
        await live_through(here, allow_duplicate=allow_duplicate)
        roll(here)
        here.clock.advance(WINDOW_MS + 1)
        await here.publish("t", [message(here, b"later", None)])
        roll(here)
        rewrite(here)

        assert await outcomes_of(here, *OUTCOMES) == [UNKNOWN] * len(OUTCOMES)


async def test_the_last_message_of_an_id_is_the_one_that_is_told_of(tmp_path):
    async with topics(tmp_path, ManualClock()) as here:
        await here.create("t", 3)
        for number, name in enumerate((b"x", b"y", b"z")):
            await here.publish("t", [message(here, name, 1_000)], partition=number)
        await here.pending.cancel("t", [Named(b"x"), Named(b"y")])
        here.clock.advance(1_000)
        await here.fired("t")
        assert await outcomes_of(here, b"x", b"y", b"z") == [
            CANCELLED,
            CANCELLED,
            ALREADY_FIRED,
        ]

        # The same ids once more, each in another partition.
        for number, name in enumerate((b"x", b"y", b"z")):
            again = message(here, name, 1_000, key=b"other")
            where = (number + 1) % 3
            await here.publish("t", [again], partition=where, allow_duplicate=True)
        await here.pending.cancel("t", [Named(b"z")])
        here.clock.advance(1_000)
        await here.fired("t")

        answered = [ALREADY_FIRED, ALREADY_FIRED, CANCELLED]
        assert await outcomes_of(here, b"x", b"y", b"z") == answered
        by_key = [CANCELLED, CANCELLED, ALREADY_FIRED]
        assert await outcomes_of(here, b"x", b"y", b"z", key=b"k") == by_key
        assert await outcomes_of(here, b"x", b"y", b"z", key=b"other") == answered
        assert await outcomes_of(here, b"x", key=b"nobody's") == [UNKNOWN]


async def test_many_of_one_id_cost_a_look_at_the_last(tmp_path):
    async with topics(tmp_path, ManualClock()) as here:
        await here.create("t")
        many = [message(here, b"x", None, key=b"%d" % n) for n in range(500)]
        await here.publish("t", many, allow_duplicate=True)

        assert await outcomes_of(here, b"x") == [ALREADY_FIRED]
        assert await outcomes_of(here, b"x", key=b"0") == [ALREADY_FIRED]
        assert await outcomes_of(here, b"x", key=b"500") == [UNKNOWN]
