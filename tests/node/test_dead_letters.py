"""Dead letters: kept exactly once, shown as they were, redriven or purged."""

from dataclasses import replace

import pytest

from tests.node.consuming import Consuming, Member, consuming
from waterclock.cluster.remote_calls import UnforeseenElsewhere
from waterclock.log.schema import decode
from waterclock.model.errors import BadInput, StorageFull, UnknownTopic
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.views import TopicSettings
from waterclock.node.dead_letters import dead_letters, writer
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.groups.outbound import SMALL_BYTES_MAX, Delivery
from waterclock.node.groups.session import AnswerKind
from waterclock.node.metadata import Metadata

NACK, REJECT = AnswerKind.NACK, AnswerKind.REJECT


async def rejected(c: Consuming, *offsets: int, partition: int = 0) -> Member:
    """Have a member reject messages, and its group write them as dead letters."""
    member = await c.join()
    member.take()
    member.answer(REJECT, *offsets, partition=partition)
    await c.settle()
    return member


BY_HAND = {"wc-dlq-attempts": b"many", "wc-dlq-group": b"\xff", "wc-dlq-reason": b"\xfe"}


async def test_a_dead_letter_shows_the_message_as_it_was_and_how_it_died(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        due_ms = Millis(c.clock.now_ms() - 5)
        expires_ms = b"%d" % (c.clock.now_ms() + 10_000)
        headers = {"colour": b"red", "wc-expires-ms": expires_ms, "wc-dlq-group": b"forged"}
        message = Message(b"v", key=b"k", message_id=b"id", headers=headers, due_ms=due_ms)
        await c.send([message], partition=1)
        await rejected(c, 0, partition=1)

        (letter,) = (await c.dead_letters.list("t")).dead_letters

        kept = {"colour": b"red", "wc-expires-ms": expires_ms}
        assert letter.message == replace(message, headers=kept)
        assert (letter.group, letter.reason, letter.attempts) == ("g", "rejected", 1)
        assert (letter.origin_partition, letter.origin_offset) == (1, 0)
        assert (letter.partition, letter.offset) == (1, 0)
        assert letter.dead_lettered_ms == c.clock.now_ms()
        dead_topic = c.hosts.topics.get("t.dlq")
        assert len(dead_topic.partitions) == 2
        (frame,) = dead_topic.partition(1).store.read(0)
        names = [name for name, _ in decode(frame.header, frame.body)["headers"][0].as_py()]
        assert len(names) == len(set(names))


async def test_a_message_without_headers_and_a_tombstone_die_like_others(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.send([Message(None, key=b"k"), Message(b"x" * 100_000)])
        await rejected(c, 0, 1)

        first, second = (await c.dead_letters.list("t")).dead_letters

        assert (first.message.value, first.message.headers) == (None, None)
        assert second.message.value == b"x" * 100_000


async def test_a_message_that_was_too_late_when_it_died_is_kept_all_the_same(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        headers = {"wc-expires-ms": b"%d" % (c.clock.now_ms() + 10)}
        await c.send([Message(b"v", headers=headers)])
        member = await c.join()
        member.take()
        c.clock.advance(20)
        member.answer(REJECT, 0)
        await c.settle()

        assert (await c.dead_letters.list("t")).total == 1


async def test_a_crash_after_writing_writes_no_dead_letter_twice(tmp_path, monkeypatch):
    clock = None
    async with consuming(tmp_path) as c:
        clock = c.clock
        await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        await c.groups.save_all()
        put_many = Metadata.put_many

        async def lose(self, records):
            if not any(key.startswith("progress/") for key in records):
                await put_many(self, records)

        monkeypatch.setattr(Metadata, "put_many", lose)
        await rejected(c, 0)
        assert (await c.dead_letters.list("t")).total == 1
        c.has_crashed = True
    monkeypatch.undo()
    async with consuming(tmp_path, clock=clock) as c:
        member = await rejected(c, 0)

        assert member.offsets == [(0, 0), (0, 1)], "the rejection was saved after all"
        page = await c.dead_letters.list("t")
        assert [letter.message.value for letter in page.dead_letters] == [b"a"]


async def test_a_dead_message_is_not_delivered_again_after_a_crash(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        await rejected(c, 0)
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        member.take()

        assert member.values == [b"b"]


async def test_what_was_dead_when_the_node_died_is_written_by_the_next(tmp_path, monkeypatch):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")

        async def full(self, partition, group, effect):
            raise StorageFull("no space left")

        monkeypatch.setattr(DeadLetters, "write_dead_letters", full)
        monkeypatch.setattr(writer, "RETRY_S", 3_600)
        member = await c.join()
        member.take()
        member.answer(REJECT, 0)
        await c.groups.save_all()
        c.has_crashed = True
    monkeypatch.undo()
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        await c.settle()

        assert member.take()[1:] == [], "a dead message was delivered"
        assert (await c.dead_letters.list("t")).total == 1


@pytest.mark.parametrize("error", [StorageFull("no space"), UnforeseenElsewhere("a bug", "e1")])
async def test_a_full_disk_or_a_bug_elsewhere_only_delays_a_dead_letter(
    tmp_path, monkeypatch, error
):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        monkeypatch.setattr(writer, "RETRY_S", 0)
        write_dead_letters, tries = DeadLetters.write_dead_letters, []

        async def fails_twice(self, partition, group, effect):
            tries.append(effect)
            if len(tries) < 3:
                raise error
            await write_dead_letters(self, partition, group, effect)

        monkeypatch.setattr(DeadLetters, "write_dead_letters", fails_twice)
        await rejected(c, 0, 1)

        assert len(tries) == 3
        assert (await c.dead_letters.list("t")).total == 2
        assert c.groups.get("t", "g").partitions[0].lag == 0


async def test_a_message_that_dies_again_after_a_seek_is_another_dead_letter(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        for _ in range(2):
            member = await rejected(c, 0)
            member.session.leave()
            await c.settle()
            await c.groups.seek("t", "g", positions={0: 0})

        assert (await c.dead_letters.list("t")).total == 2


async def test_long_names_make_no_long_ids(tmp_path):
    async with consuming(tmp_path) as c:
        topic, group = "t" * 190, "g" * 200
        await c.hosts.topic(topic)
        await c.publish(b"a", topic=topic)
        member = await c.join(topic=topic, group=group)
        member.take()
        member.answer(REJECT, 0)
        await c.settle()
        await c.dead_letters.redrive(topic)
        again = await c.join(topic=topic, group="other")
        again.take()

        ids = [id_ for d in again.deliveries for id_ in d.messages.rows()["message_id"].to_pylist()]
        assert all(len(id_) <= 255 for id_ in ids)


async def test_a_dead_letter_topic_has_none_of_its_own_and_tries_for_ever(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t.dlq")
        await c.publish(b"a", b"b", topic="t.dlq")
        member = await c.join(topic="t.dlq")
        for attempt in (1, 2, 2, 2):
            member.take()
            assert [d.attempt for d in member.deliveries[-1:]] == [attempt]
            member.answer(REJECT if attempt == 2 else NACK, 0)
            member.session.heartbeat()
            member.answer(AnswerKind.EXTEND, 1, at_ms=c.clock.now_ms() + 10_000)
            await c.pass_time(100 if attempt == 1 else 399)
            if attempt == 2:
                assert member.take() == [], "before the longest wait"
                await c.pass_time(1)

        assert c.hosts.topics.find("t.dlq.dlq") is None


async def test_dead_letters_are_listed_page_by_page_over_partitions(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        member = await c.join()
        for partition in range(2):
            await c.publish(*[b"%d" % n for n in range(5)], partition=partition)
        await c.settle()
        member.take()
        for partition in range(2):
            member.answer(REJECT, *range(5), partition=partition)
        await c.settle()

        found, page = [], ""
        while True:
            answer = await c.dead_letters.list("t", limit=3, page=page)
            assert answer.total == 10
            assert len(answer.dead_letters) <= 3
            found += [(letter.partition, letter.offset) for letter in answer.dead_letters]
            page = answer.next_page
            if not page:
                break

        assert found == [(p, n) for p in range(2) for n in range(5)]
        for nonsense in ("x", "1:", ":1", "-1:2", "1:" + "9" * 50):
            with pytest.raises(BadInput):
                await c.dead_letters.list("t", page=nonsense)
        with pytest.raises(UnknownTopic):
            await c.dead_letters.list("nowhere")


async def test_dead_messages_that_are_read_one_after_the_other_are_all_kept(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        for value in (b"a", b"b", b"c"):
            await c.publish(value * (SMALL_BYTES_MAX + 1))
        await rejected(c, 0, 1, 2)

        page = await c.dead_letters.list("t")
        assert [(letter.value or b"")[:1] for letter in page.dead_letters] == [b"a", b"b", b"c"]


async def test_a_redrive_that_finds_no_space_leaves_its_dead_letters_on_the_list(
    tmp_path, monkeypatch
):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        await rejected(c, 0)

        async def full(*_: object) -> None:
            raise StorageFull("no space left")

        with monkeypatch.context() as failing:
            failing.setattr(dead_letters, "publish_again", full)
            with pytest.raises(StorageFull):
                await c.dead_letters.redrive("t")

        assert (await c.dead_letters.list("t")).total == 1
        assert await c.dead_letters.redrive("t") == 1


async def test_redriven_messages_come_again_under_a_new_id_and_leave_the_list(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.send([Message(b"a", key=b"k", headers={"colour": b"red"}), Message(b"b")])
        member = await rejected(c, 0, 1)

        assert await c.dead_letters.redrive("t", [(0, 0), (0, 7)]) == 1
        await c.settle()
        (again,) = member.take()

        assert isinstance(again, Delivery)
        rows = again.messages.rows()
        assert rows["value"].to_pylist() == [b"a"]
        assert rows["key"].to_pylist() == [b"k"]
        assert dict(rows["headers"].to_pylist()[0]) == {"colour": b"red", "wc-redriven": b"1"}
        page = await c.dead_letters.list("t")
        assert [letter.message.value for letter in page.dead_letters] == [b"b"]
        assert page.total == 1


async def test_a_message_that_was_redriven_and_dies_again_counts_its_redrives(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await rejected(c, 0)
        for times in (1, 2, 3):
            assert await c.dead_letters.redrive("t") == 1
            await c.settle()
            (again,) = member.take()
            assert isinstance(again, Delivery)
            assert (
                dict(again.messages.rows()["headers"].to_pylist()[0])["wc-redriven"]
                == b"%d" % times
            )
            member.answer(REJECT, times)
            await c.settle()

        assert (await c.dead_letters.list("t")).total == 1


async def test_a_crash_between_publishing_and_marking_publishes_nothing_twice(
    tmp_path, monkeypatch
):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        await rejected(c, 0)

        async def crash(self, name, value):
            raise RuntimeError("killed")

        monkeypatch.setattr(Metadata, "put", crash)
        with pytest.raises(RuntimeError):
            await c.dead_letters.redrive("t")
        c.has_crashed = True
    monkeypatch.undo()
    async with consuming(tmp_path, clock=c.clock) as c:
        assert await c.dead_letters.redrive("t") == 1
        fresh = await c.join(group="fresh")
        fresh.take()

        assert fresh.values == [b"a", b"a"], "the original, and one that was redriven"
        assert (await c.dead_letters.list("t")).total == 0


async def test_redriving_stops_at_its_limit_and_purging_drops_the_rest(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(*[b"%d" % n for n in range(5)])
        await rejected(c, *range(5))

        assert await c.dead_letters.redrive("t", limit=2) == 2
        assert await c.dead_letters.purge("t", [(0, 4)]) == 1
        assert (await c.dead_letters.list("t")).total == 2
        assert await c.dead_letters.purge("t") == 2
        assert await c.dead_letters.purge("t") == 0
        assert await c.dead_letters.redrive("t") == 0
    async with consuming(tmp_path, clock=c.clock) as c:
        page = await c.dead_letters.list("t")
        assert (page.dead_letters, page.total) == ([], 0)
        with pytest.raises(BadInput):
            await c.dead_letters.redrive("t", [(3, 0)])
        with pytest.raises(BadInput):
            await c.dead_letters.redrive("t", limit=-1)


async def test_a_topic_without_dead_letters_has_none(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")

        page = await c.dead_letters.list("t")

        assert (page.dead_letters, page.next_page, page.total) == ([], "", 0)
        assert await c.dead_letters.redrive("t") == 0
        assert await c.dead_letters.purge("t") == 0


async def test_what_somebody_published_to_the_dead_letter_topic_by_hand_is_listed_too(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.hosts.topic("t.dlq")
        await c.publish(b"by hand", topic="t.dlq", headers=BY_HAND)

        (letter,) = (await c.dead_letters.list("t")).dead_letters

        assert (letter.reason, letter.group, letter.attempts) == ("\ufffd", "\ufffd", 0)
        assert await c.dead_letters.redrive("t") == 1


async def test_a_topic_that_grew_has_its_dead_letter_topic_grow(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await rejected(c, 0)
        await c.hosts.topics.update("t", TopicSettings(partitions=3))
        await c.publish(b"b", partition=2)
        await c.settle()
        member.take()
        member.answer(REJECT, 0, partition=2)
        await c.settle()

        found = (await c.dead_letters.list("t")).dead_letters
        assert [(letter.partition, letter.message.value) for letter in found] == [
            (0, b"a"),
            (2, b"b"),
        ]
