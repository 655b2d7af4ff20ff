"""Pending messages are read a few at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.node.timed_topics import TimedTopics, with_topic
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.node.schedule import pending_filter, pending_pages
from waterclock.node.schedule.pending_filter import Filter
from waterclock.storage.reader import Reader


@pytest.fixture
def reads(monkeypatch):
    """Return what was read so far: in which turn of the loop, and of how many messages."""
    return Reads(monkeypatch)


class Reads(list[tuple[int, int]]):
    """Notes them while others have turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turns = 0
        rows = Reader.rows

        def reading(reader, offsets):
            self.append((self._turns, len(offsets)))
            return rows(reader, offsets)

        monkeypatch.setattr(Reader, "rows", reading)

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        ticking = asyncio.create_task(self._tick())
        yield
        ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self._turns += 1
            await asyncio.sleep(0)

    @property
    def turns(self) -> int:
        """In how many turns something was read."""
        return len({turn for turn, _ in self})


def later(here: TimedTopics, number: int) -> Message:
    due_ms = Millis(here.clock.now_ms() + 3_600_000)
    return Message(b"", key=b"k", message_id=b"%d" % number, due_ms=due_ms)


@pytest.mark.parametrize("wanted", [Filter(), Filter(key=b"k")])
async def test_others_have_their_turns_while_a_page_is_read(tmp_path, monkeypatch, wanted, reads):
    monkeypatch.setattr(pending_pages, "PAGE_SLICE", 2)

    async with with_topic(tmp_path, partitions=1) as here:
        for number in range(7):
            await here.publish("t", [later(here, number)])
        async with reads.counted():
            page = await here.pending.list("t", wanted)

    assert [one.message.message_id for one in page.scheduled] == [b"%d" % n for n in range(7)]
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
