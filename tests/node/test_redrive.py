"""Which dead letters are done with: known for one log, and for nothing that was never in it."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.node.consuming import Consuming, consuming
from waterclock.model.errors import (
    AlreadyExists,
    BadInput,
    LimitExceeded,
    StorageFailed,
    UnknownTopic,
)
from waterclock.model.limits import Limits
from waterclock.model.tracker import OffsetTracker
from waterclock.node.dead_letters import dead_letters, redrive
from waterclock.node.dead_letters.progress import decode_progress, encode_progress
from waterclock.node.dead_letters.redrive import Edit, edit_of
from waterclock.node.groups.session import AnswerKind

LOG, OTHER_LOG = b"a" * 16, b"b" * 16
DONE = OffsetTracker(3)
DONE.add(5, 9)
GOLDEN = "f357436d01a8fb8d756161616161616161616161616161616101030204"


async def dead_lettered(c: Consuming, *values: bytes) -> None:
    """Have messages die, each in a batch of its own."""
    member = await c.join()
    for value in values:
        await c.publish(value)
        await c.settle()
        member.take()
        member.answer(AnswerKind.REJECT, member.offsets[-1][1])
        await c.settle()
    member.session.leave()
    await c.settle()


async def listed(c: Consuming) -> tuple[list[bytes | None], int]:
    page = await c.dead_letters.list("t")
    return [letter.message.value for letter in page.dead_letters], page.total


def lose(files: Iterable[Path]) -> None:
    """Lose a log, as a power cut can that was not made durable (`fsync: interval`)."""
    for file in files:
        if file.name != "LOCK":
            file.unlink()


# A log that is gone


@pytest.mark.parametrize("act", ["redrive", "purge"])
async def test_progress_of_a_topic_that_is_deleted_meanwhile_does_not_hold_for_the_next(
    tmp_path, monkeypatch, act
):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a", b"b")
        again, original = redrive.publish_again, redrive.DeadLetterPartition.open_dead_letters

        async def deleted(topic, some):
            await again(topic, some)
            await c.hosts.topics.delete("t.dlq")

        async def open_dead_letters(self, *args):
            async for some in original(self, *args):
                await c.hosts.topics.delete("t.dlq")
                yield some

        if act == "redrive":
            monkeypatch.setattr(dead_letters, "publish_again", deleted)
        else:
            monkeypatch.setattr(redrive.DeadLetterPartition, "open_dead_letters", open_dead_letters)
        with pytest.raises(UnknownTopic, match="dlq"):
            await getattr(c.dead_letters, act)("t")
        monkeypatch.undo()
        await dead_lettered(c, b"c", b"d")

        assert (await listed(c))[0][-2:] == [b"c", b"d"]
        assert c.hosts.metadata.items("progress/t.dlq/") == []


async def test_a_listing_ends_when_the_dead_letters_are_deleted_meanwhile(tmp_path, monkeypatch):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a", b"b")
        monkeypatch.setattr(redrive, "SLICE_S", -1)

        listing = asyncio.ensure_future(c.dead_letters.list("t"))
        await asyncio.sleep(0)
        await c.hosts.topics.delete("t.dlq")

        with pytest.raises(UnknownTopic, match="dlq"):
            await listing
        assert await listed(c) == ([], 0)


@pytest.mark.parametrize("is_whole", [True, False])
async def test_progress_beyond_a_log_that_lost_its_tail_is_forgotten_for_good(tmp_path, is_whole):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a")
    (log,) = tmp_path.glob("topics/t.dlq-*/0/log")
    before = {file.name: file.read_bytes() for file in log.iterdir() if file.is_file()}
    async with consuming(tmp_path, clock=c.clock) as c:
        await dead_lettered(c, b"b", b"c")
        assert await c.dead_letters.purge("t") == 3
    lose(log.iterdir())
    if not is_whole:
        for name, content in before.items():
            (log / name).write_bytes(content)
    async with consuming(tmp_path, clock=c.clock) as c:
        # Nobody asks before the new ones have the offsets of those that were lost.
        await dead_lettered(c, b"d", b"e")
        assert await listed(c) == ([b"d", b"e"], 2)
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        assert await listed(c) == ([b"d", b"e"], 2)


async def test_progress_survives_a_restart(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a", b"b", b"c")
        assert await c.dead_letters.purge("t", [(0, 1)]) == 1
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        assert await listed(c) == ([b"a", b"c"], 2)


async def test_progress_that_cannot_be_read_hides_nothing(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a")
        await c.dead_letters.purge("t")
        await c.hosts.metadata.put("progress/t.dlq/__redrive/0", b"\x01\x01")
    async with consuming(tmp_path, clock=c.clock) as c:
        assert await listed(c) == ([b"a"], 1)


# Bytes


def test_progress_holds_for_its_log_as_far_as_it_goes():
    data = encode_progress(LOG, DONE)

    assert decode_progress(data, log_id=LOG, log_end=9) == DONE
    assert list(decode_progress(data, log_id=LOG, log_end=7).runs()) == [(5, 7)]
    assert decode_progress(data, log_id=LOG, log_end=2) == OffsetTracker(2)
    assert decode_progress(data, log_id=OTHER_LOG, log_end=9) == OffsetTracker(0)


def test_the_bytes_are_those_of_version_1():
    assert encode_progress(LOG, DONE).hex() == GOLDEN


@pytest.mark.parametrize("at", range(len(GOLDEN) // 2))
def test_damaged_bytes_are_an_error(at):
    data = bytearray.fromhex(GOLDEN)
    data[at] ^= 1

    for damaged in (bytes(data), bytes(data[:at])):
        with pytest.raises(BadInput):
            decode_progress(damaged, log_id=LOG, log_end=9)


# Counting


@pytest.fixture
def _letting_go(monkeypatch):
    """Let the loop go after each frame, as in a large log."""
    monkeypatch.setattr(redrive, "SLICE_S", -1)


@pytest.mark.usefixtures("_letting_go")
async def test_two_who_list_at_once_count_the_same(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a", b"b", b"c", b"d")

        pages = await asyncio.gather(*[c.dead_letters.list("t") for _ in range(3)])

        assert [page.total for page in pages] == [4, 4, 4]


@pytest.mark.usefixtures("_letting_go")
@pytest.mark.parametrize("turns", range(1, 12))
async def test_a_listing_that_is_given_up_miscounts_no_later_one(tmp_path, turns):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a", b"b", b"c", b"d")

        given_up = asyncio.ensure_future(c.dead_letters.list("t"))
        for _ in range(turns):
            await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])

        assert await listed(c) == ([b"a", b"b", b"c", b"d"], 4)


# One that is edited


async def test_a_dead_letter_is_edited_and_keeps_its_partition_and_what_is_not_edited(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a", b"b")

        assert await c.dead_letters.redrive("t", [(0, 0)], edit=Edit(b"mended", None)) == 1
        assert await c.dead_letters.redrive("t", [(0, 0)], edit=Edit(b"again", None)) == 0
        assert await listed(c) == ([b"b"], 1)
        headers = {"why": b"tried"}
        assert await c.dead_letters.redrive("t", [(0, 1)], edit=Edit(None, headers)) == 1

        assert await stored(c) == [
            (b"a", {}),
            (b"b", {}),
            (b"mended", {"wc-redriven": b"1"}),
            (b"b", {"why": b"tried", "wc-redriven": b"1"}),
        ]


async def test_one_with_other_headers_goes_where_it_came_from(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        member = await c.join()
        await c.publish(b"a", partition=1)
        await c.settle()
        member.take()
        member.answer(AnswerKind.REJECT, 0, partition=1)
        await c.settle()

        assert await c.dead_letters.redrive("t", [(1, 0)], edit=Edit(None, {})) == 1
        assert [host.store.end for host in c.hosts.topics.get("t").partitions] == [0, 2]


async def test_an_edit_is_of_one_dead_letter(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a", b"b")

        for positions in (None, [], [(0, 0), (0, 1)]):
            with pytest.raises(BadInput, match="one dead letter"):
                await c.dead_letters.redrive("t", positions, edit=Edit(b"mended", None))
        assert await listed(c) == ([b"a", b"b"], 2)


async def test_an_edit_that_a_crash_cuts_short_is_neither_lost_nor_there_twice(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await dead_lettered(c, b"a")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(c.hosts.metadata, "put", crash)
            with pytest.raises(StorageFailed):
                await c.dead_letters.redrive("t", [(0, 0)], edit=Edit(b"mended", None))
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        assert await listed(c) == ([b"a"], 1)
        with pytest.raises(AlreadyExists, match="t 0/0"):
            await c.dead_letters.redrive("t", [(0, 0)], edit=Edit(b"other", None))
        assert await listed(c) == ([b"a"], 1)
        assert await c.dead_letters.redrive("t", [(0, 0)]) == 1
        assert await listed(c) == ([], 0)
        assert await stored(c) == [(b"a", {}), (b"mended", {"wc-redriven": b"1"})]


async def stored(c: Consuming) -> list[tuple[bytes, dict[str, bytes]]]:
    """Return the values and headers that are in the topic, by a group of their own."""
    member = await c.join(group="looks")
    await c.settle()
    member.take()
    rows = [row for each in member.deliveries for row in each.messages.rows().to_pylist()]
    return [(row["value"], dict(row["headers"] or ())) for row in rows]


async def crash(*_: object) -> None:
    raise StorageFailed("the node ends")


def test_what_is_edited_is_within_the_limits_and_has_no_header_of_the_nodes_own():
    headers = {"wc-dlq-topic": b"x", "wc-expires-ms": b"1", "wc-redriven": b"9", "mine": b"y"}

    assert edit_of(None, None, Limits()) is None
    assert edit_of(None, headers, Limits()) == Edit(None, {"mine": b"y"})
    with pytest.raises(LimitExceeded, match="message bytes"):
        edit_of(bytes(Limits().message_bytes_max + 1), None, Limits())
    with pytest.raises(LimitExceeded, match="header"):
        edit_of(None, {"h": bytes(Limits().header_bytes_max)}, Limits())
