"""A search by id does a bounded piece of work at a time, however often an id was used."""

import asyncio
from collections import Counter
from functools import partial

import numpy as np
import pytest

from tests.node.timed_topics import TimedTopics, with_topic
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig
from waterclock.node.schedule import named_changes, pending_ids
from waterclock.node.schedule.named_changes import Named
from waterclock.node.schedule.scheduler import ALREADY_FIRED, DONE, UNKNOWN
from waterclock.storage.reader import Reader

COUNT = 3_000
DELAY_MS = 60_000
OFTEN = b"often used"


@pytest.fixture
def topics(tmp_path):
    """Return a way to open the topics of one folder, with a topic `t` of one partition."""
    return partial(with_topic, tmp_path, partitions=1)


@pytest.fixture
def compared(monkeypatch) -> Counter[int]:
    """Count the stored ids that are compared in each turn of the loop."""
    counts: Counter[int] = Counter()

    def counting(name: str) -> None:
        original = getattr(Reader, name)

        def method(self, offsets, *args):
            counts[len(turns)] += len(offsets)
            return original(self, offsets, *args)

        monkeypatch.setattr(Reader, name, method)

    turns: list[None] = []
    monkeypatch.setattr(asyncio, "sleep", slept(turns))
    counting("has_ids")
    counting("append_times")
    return counts


def slept(turns: list[None]):
    """Return a sleep that notes each turn that others are given."""
    sleep = asyncio.sleep

    async def noted(delay: float) -> None:
        turns.append(None)
        await sleep(delay)

    return noted


async def publish(here: TimedTopics, count: int, *, delay_ms: int | None = None) -> None:
    """Publish messages of one id; each has a key of its own."""
    due_ms = None if delay_ms is None else Millis(here.clock.now_ms() + delay_ms)
    messages = [
        Message(b"v", message_id=OFTEN, key=b"%d" % number, due_ms=due_ms)
        for number in range(count)
    ]
    await here.publish("t", messages, allow_duplicate=True)


@pytest.mark.parametrize("delay_ms", [None, DELAY_MS])
async def test_others_have_a_turn_after_each_slice(topics, compared, delay_ms):
    async with topics() as here:
        await publish(here, COUNT, delay_ms=delay_ms)
        outcomes, _ = await here.pending.cancel("t", [Named(OFTEN, b"nobody's")])
        assert outcomes.tolist() == [UNKNOWN]
    assert compared.total() == COUNT
    assert max(compared.values()) < 2 * pending_ids.CONFIRM_SLICE


@pytest.mark.parametrize("delay_ms", [None, DELAY_MS])
async def test_equal_names_are_searched_for_once(topics, compared, delay_ms):
    async with topics() as here:
        await publish(here, COUNT, delay_ms=delay_ms)
        named = [Named(OFTEN, b"nobody's"), Named(b"other")] * 50
        outcomes, reached = await here.pending.cancel("t", named)
        assert (set(outcomes.tolist()), int(reached.sum())) == ({UNKNOWN}, 0)
    assert compared.total() == COUNT


async def test_messages_named_by_id_and_position_are_compared_in_slices(topics, compared):
    async with topics() as here:
        await publish(here, COUNT, delay_ms=DELAY_MS)
        named = [Named(OFTEN, position=(0, offset)) for offset in range(COUNT)]
        _, reached = await here.pending.cancel("t", named)
        assert reached.tolist() == [1] * COUNT
    assert max(compared.values()) <= pending_ids.CONFIRM_SLICE


async def test_equal_names_have_the_same_answer_and_the_last_time_holds(topics):
    async with topics() as here:
        await publish(here, 3, delay_ms=DELAY_MS)
        now_ms = here.clock.now_ms()
        named = [Named(OFTEN), Named(b"nobody"), Named(OFTEN), Named(OFTEN, b"1")]
        times = [now_ms + delay_ms for delay_ms in (1_000, 1_000, 2_000, 3_000)]

        outcomes, reached = await here.pending.reschedule("t", named, times)

        assert outcomes.tolist() == [DONE, UNKNOWN, DONE, DONE]
        assert reached.tolist() == [3, 0, 3, 1]
        here.clock.advance(1_500)
        assert await here.fired("t") == []
        here.clock.advance(500)
        assert [m.key for m in await here.fired("t")] == [b"0", b"2"]


async def test_more_than_fit_into_memory_at_once_are_all_reached(topics, monkeypatch):
    monkeypatch.setattr(named_changes, "PLACES_MAX", 10)
    monkeypatch.setattr(pending_ids, "CONFIRM_SLICE", 4)
    monkeypatch.setattr(pending_ids, "ENTRIES_SLICE", 7)

    async with topics() as here:
        await publish(here, 100, delay_ms=DELAY_MS)
        await publish(here, 50)
        outcomes, reached = await here.pending.cancel("t", [Named(OFTEN), Named(OFTEN, b"7")])
        assert outcomes.tolist()[0] == DONE
        assert reached.tolist()[0] == 100
        outcomes, _ = await here.pending.cancel("t", [Named(OFTEN), Named(OFTEN, b"7")])
        assert outcomes.tolist() == [ALREADY_FIRED, ALREADY_FIRED]


async def test_what_the_index_forgot_is_found_while_its_side_car_is_not_saved_and_after(topics):
    async with topics(dedup=DedupConfig(ids_max=1)) as here:
        due_ms = Millis(here.clock.now_ms() + DELAY_MS)
        messages = [Message(b"v", message_id=name, due_ms=due_ms) for name in (b"x", b"y", b"z")]
        await here.publish("t", messages)
        (host,) = here.topics.get("t").partitions
        host.store.roll(here.clock.now_ms())
        assert host.store.ids is not None
        assert not host.store.ids.knows(0)
        assert len(host.store.jobs) == 1

        assert (await here.pending.cancel("t", [Named(b"x")])).reached.tolist() == [1]
        host.store.run_jobs()
        assert (await here.pending.cancel("t", [Named(b"y")])).reached.tolist() == [1]

        offsets, _ = host.store.open_scheduled()
        assert np.array_equal(offsets, [2])
