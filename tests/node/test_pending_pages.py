"""Pending messages are read a few at a time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.kit.clock import ManualClock
from tests.node.timed_topics import TimedTopics, with_topic
from waterclock.log.scheduled import FoundRows, ScheduledRows, scheduled_rows
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.node.schedule import pending_filter, pending_pages
from waterclock.node.schedule.pending import PendingMessages
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.pending_pages import HOSTS_SLICE
from waterclock.storage.reader import Reader


@pytest.fixture
def reads(monkeypatch):
    """Return what was read so far: in which turn of the loop, and of how many messages."""
    return Reads(monkeypatch)


class Reads(list[tuple[int, int]]):
    """Notes them while others have turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0
        """Turns of others."""
        self.frames: Counter[int] = Counter()
        """Read in each of them."""
        rows = Reader.rows

        def reading(reader, offsets) -> Iterator[FoundRows]:
            self.append((self.passed, len(offsets)))
            for found in rows(reader, offsets):
                self.frames[self.passed] += 1
                yield found

        monkeypatch.setattr(Reader, "rows", reading)

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        ticking = asyncio.create_task(self._tick())
        yield
        ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self.passed += 1
            await asyncio.sleep(0)

    @property
    def turns(self) -> int:
        """In how many turns something was read."""
        return len({turn for turn, _ in self})


def later(here: TimedTopics, number: int, value: bytes = b"", *, delay_ms: int = 0) -> Message:
    due_ms = Millis(here.clock.now_ms() + 3_600_000 + delay_ms)
    return Message(value, key=b"k", message_id=b"%d" % number, due_ms=due_ms)


def ids(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


EITHER = pytest.mark.parametrize("wanted", [Filter(), Filter(key=b"k")])


@EITHER
async def test_others_have_their_turns_while_a_page_is_read(tmp_path, monkeypatch, wanted, reads):
    monkeypatch.setattr(pending_pages, "PAGE_SLICE", 2)

    async with with_topic(tmp_path, partitions=1) as here:
        for number in range(7):
            await here.publish("t", [later(here, number)])
        async with reads.counted():
            page = await here.pending.list("t", wanted)

    assert [one.message.message_id for one in page.scheduled] == ids(range(7))
    assert reads.turns == 4
    assert max(count for _, count in reads) == 2


async def test_others_have_their_turns_while_it_is_looked_which_to_cancel(
    tmp_path, monkeypatch, reads
):
    monkeypatch.setattr(pending_filter, "READ_FRAMES", 2)

    async with with_topic(tmp_path, partitions=1) as here:
        await here.publish("t", [later(here, number) for number in range(10)])
        for number in range(10, 16):
            await here.publish("t", [later(here, number)])
        async with reads.counted():
            count = await here.pending.cancel_where("t", Filter(key=b"k"), dry_run=True)

    assert count.matched == 16
    assert [count for _, count in reads] == [11, 2, 2, 1]
    assert reads.turns == 4


@pytest.fixture
def joined(monkeypatch):
    """Return how many messages were copied at once, each time; eight fit."""
    seen = []

    def joining(*given: Any, **how: Any) -> ScheduledRows:
        found = scheduled_rows(*given, **how)
        seen.append(found.rows.num_rows)
        return found

    monkeypatch.setattr(pending_pages, "scheduled_rows", joining)
    monkeypatch.setattr(pending_pages, "SLICE_BYTES", 8 << 16)
    monkeypatch.setattr(pending_filter, "READ_BYTES", 8 << 16)
    return seen


@EITHER
@pytest.mark.parametrize("together", [1, 60])
async def test_few_large_messages_are_read_in_one_turn(tmp_path, joined, reads, wanted, together):
    async with with_topic(tmp_path, partitions=1) as here:
        messages = [later(here, n, bytes(1 << 16), delay_ms=7 * n % 60) for n in range(60)]
        for start in range(0, 60, together):
            await here.publish("t", messages[start : start + together])
        async with reads.counted():
            page = await here.pending.list("t", wanted, with_values=True)

    by_due = sorted(range(60), key=lambda n: 7 * n % 60)
    assert [one.message.message_id for one in page.scheduled] == ids(by_due)
    assert max(joined) <= 8
    assert max(reads.frames.values()) <= (16 if wanted.needs_rows else 8)


async def test_few_large_messages_are_looked_at_in_one_turn_to_cancel_some(tmp_path, joined, reads):
    async with with_topic(tmp_path, partitions=1) as here:
        for number in range(20):
            await here.publish("t", [later(here, number, bytes(1 << 16))])
        async with reads.counted():
            count = await here.pending.cancel_where("t", Filter(key=b"k"))

    assert (count.matched, count.cancelled) == (20, 20)
    assert max(reads.frames.values()) == 8


@EITHER
@pytest.mark.parametrize(("page_bytes", "expected"), [(1, 1), (8 << 10, 8), (1 << 20, 20)])
async def test_a_page_ends_once_it_has_enough_bytes_and_the_next_goes_on_there(
    tmp_path, monkeypatch, wanted, page_bytes, expected
):
    monkeypatch.setattr(pending_pages, "PAGE_BYTES", page_bytes)
    monkeypatch.setattr(pending_pages, "PAGE_SLICE", 3)

    async with with_topic(tmp_path, partitions=3) as here:
        for number in range(20):
            message = later(here, number, bytes(1 << 10), delay_ms=7 * number % 20)
            await here.publish("t", [message], partition=number % 3)
        pages: list[list[bytes | None]] = []
        page = ""
        while not pages or page:
            answer = await here.pending.list("t", wanted, page=page, with_values=True)
            pages.append([one.message.message_id for one in answer.scheduled])
            page = answer.next_page
        bare = await here.pending.list("t", wanted)

    by_due = ids(sorted(range(20), key=lambda n: 7 * n % 20))
    assert pages == [by_due[start : start + expected] for start in range(0, 20, expected)]
    assert [one.message.message_id for one in bare.scheduled] == by_due
    assert not bare.next_page


class Idle:
    """The timers of a partition that has none."""

    async def scan(self, start_ms: int, end_ms: int) -> AsyncIterator[Any]:
        for nothing in range(0):
            yield nothing

    async def upcoming(self, *_: int, after: int) -> Any:
        return np.empty(0, np.int64), np.empty(0, np.int64)


Ask = Callable[[PendingMessages], Awaitable[Any]]


@pytest.mark.parametrize(
    "ask",
    [
        lambda pending: pending.count("t"),
        lambda pending: pending.count_all(lambda topic: True),
        lambda pending: pending.list_all(lambda topic: True, Filter()),
        lambda pending: pending.cancel_where("t", Filter()),
    ],
    ids=["count", "count_all", "list_all", "cancel_where"],
)
async def test_others_have_their_turns_while_many_partitions_are_looked_at(reads, ask: Ask):
    hosts = [
        SimpleNamespace(partition=number, is_open=True, scheduler=Idle()) for number in range(1_000)
    ]
    topic = SimpleNamespace(name="t", led=hosts)
    topics: Any = SimpleNamespace(all=lambda: [topic], get=lambda name: topic)
    async with reads.counted():
        await ask(PendingMessages(topics, Limits(), ManualClock()))

    assert reads.passed == 1_000 // HOSTS_SLICE
