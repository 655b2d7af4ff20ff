"""Pages of pending messages: read a few at a time."""

import asyncio

import pytest

from tests.node.timed_topics import with_topic
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.node.schedule import pending_pages
from waterclock.node.schedule.pending_filter import Filter
from waterclock.storage.reader import Reader


@pytest.mark.parametrize("wanted", [Filter(), Filter(key=b"k")])
async def test_others_have_their_turns_while_a_page_is_read(tmp_path, monkeypatch, wanted):
    monkeypatch.setattr(pending_pages, "PAGE_SLICE", 2)
    turns, read = 0, list[tuple[int, int]]()
    rows = Reader.rows

    def reading(reader, offsets):
        read.append((turns, len(offsets)))
        return rows(reader, offsets)

    monkeypatch.setattr(Reader, "rows", reading)

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with with_topic(tmp_path, partitions=1) as here:
        due_ms = Millis(here.clock.now_ms() + 3_600_000)
        for number in range(7):
            message = Message(b"", key=b"k", message_id=b"%d" % number, due_ms=due_ms)
            await here.publish("t", [message])
        ticking = asyncio.create_task(tick())
        page = await here.pending.list("t", wanted)
        ticking.cancel()

    assert [one.message.message_id for one in page.scheduled] == [b"%d" % n for n in range(7)]
    assert len({turn for turn, _ in read}) == 4
    assert max(count for _, count in read) == 2
