import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.clock import ManualClock
from tests.kit.examples import examples
from tests.node.gated_publishes import GatedPublishes
from tests.node.hosts import START_MS, Hosts, batch_of, config_in, opened
from waterclock.log.batch import parse_batch
from waterclock.log.lone_message import LoneMessage, parse_any
from waterclock.log.partitioner import partition_of_key, partitions_of_keys
from waterclock.log.schema import encode, from_messages
from waterclock.model.config import Config
from waterclock.model.errors import (
    BadBatch,
    LimitExceeded,
    NotFound,
    Stopping,
    StorageFull,
    Unavailable,
)
from waterclock.model.ids import Millis, Offset
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.views import TopicSettings
from waterclock.node.partition.host import PartitionHost
from waterclock.node.publish import batcher as batcher_module
from waterclock.node.publish.batcher import BATCH_MESSAGES_MAX, COMPANY_MIN, PublishBatcher
from waterclock.node.publish.publisher import Published, _where
from waterclock.node.topics import Topic
from waterclock.storage.local_log import stored_messages
from waterclock.storage.partition_store import PartitionStore


def arrow_of(*messages: Message) -> bytes:
    return bytes(encode(from_messages(messages)))


def place_of(published: Published, row: int) -> tuple[int, int]:
    partition = published.partition
    if published.partitions is not None:
        partition = int(published.partitions[row])
    offset = published.first_offset + row
    if published.offsets is not None:
        offset = int(published.offsets[row])
    return partition, offset


def stored(hosts: Hosts, topic: str) -> dict[tuple[int, int], Message]:
    return {
        (host.partition, offset): message
        for host in hosts.topics.get(topic).partitions
        for frame in host.store.frames(0)
        for offset, message in stored_messages(frame, 0)
    }


def values(store: PartitionStore) -> list[bytes | None]:
    return [m.value for frame in store.frames(0) for _, m in stored_messages(frame, 0)]


@given(
    keys=st.lists(st.none() | st.binary(min_size=1, max_size=20), min_size=1, max_size=30),
    partitions=st.integers(1, 5),
    is_sticky=st.booleans(),
)
@settings(max_examples=examples(30), deadline=None)
async def test_each_message_is_where_the_answer_says_and_where_its_key_belongs(
    tmp_path_factory, keys, partitions, is_sticky
):
    async def publish():
        async with opened(tmp_path_factory.mktemp("node")) as hosts:
            await hosts.topic("t", partitions)
            messages = [
                Message(b"%d" % i, key=key, message_id=b"id%d" % i) for i, key in enumerate(keys)
            ]
            arrow = arrow_of(*messages)
            first = await hosts.publisher.publish_batch("t", arrow, is_sticky=is_sticky)
            again = await hosts.publisher.publish_batch("t", arrow, is_sticky=is_sticky)
            return messages, first, again, stored(hosts, "t")

    messages, first, again, found = await publish()

    assert first.count == len(messages)
    assert first.duplicates is None
    assert {place_of(first, i): m for i, m in enumerate(messages)} == found
    for i, message in enumerate(messages):
        key = message.message_id if message.key is None else message.key
        if message.key is not None or not is_sticky:
            assert place_of(first, i)[0] == partition_of_key(key, partitions)
    assert {place_of(again, i): m for i, m in enumerate(messages)} == found
    assert again.duplicates is not None
    assert again.duplicates.tolist() == list(range(len(messages)))


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 1_000))
def test_one_key_and_a_column_of_keys_are_routed_alike(keys, partitions):
    batch = from_messages([Message(b"", key=key, message_id=b"i") for key in keys])

    found = partitions_of_keys(batch.column("key"), partitions, keyless=0)

    assert found.tolist() == [partition_of_key(key, partitions) for key in keys]


@pytest.mark.parametrize("is_sticky", [True, False])
@pytest.mark.parametrize("key", [None, b"", b"ada"])
def test_a_lone_message_is_routed_without_arrow_and_as_arrow_would(key, is_sticky):
    topic = Topic("t", "t", TopicSettings())
    topic.partitions = [PartitionHost("t", n, ManualClock(START_MS)) for n in range(7)]
    arrow = arrow_of(Message(b"v", key=key, message_id=b"one"))
    lone = parse_any(arrow, Limits(), now_ms=START_MS)
    other = parse_batch(arrow, Limits(), now_ms=START_MS)

    found = _where(topic, lone, is_sticky=is_sticky)

    assert isinstance(lone, LoneMessage)
    assert lone._rows is None
    assert found == _where(topic, other, is_sticky=is_sticky)


def test_routing_never_changes():
    # Clients and nodes of every release must agree: these numbers are for ever.
    keys = (b"", b"a", b"order-17", b"x" * 100)

    assert [partition_of_key(key, 1_000) for key in keys] == [0, 891, 117, 240]


async def test_a_sticky_batch_without_keys_is_one_append(tmp_path):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("t", 4)
        places = set()
        for number in range(40):
            batch = [Message(b"", message_id=b"%d-%d" % (number, i)) for i in range(5)]
            arrow = arrow_of(*batch)
            answer = await hosts.publisher.publish_batch("t", arrow, is_sticky=True)
            places.add(answer.partition)
        assert (places, sum(host.counters.batches for host in topic.partitions)) == (
            {0, 1, 2, 3},
            40,
        )


async def test_anonymous_singles_go_to_the_partitions_by_turns(tmp_path):
    async with opened(tmp_path) as hosts, asyncio.TaskGroup() as tasks:
        await hosts.topic("t", 3)
        batcher = PublishBatcher(hosts.topics, Limits(), hosts.clock, linger_ms=0)
        running = tasks.create_task(batcher.run())
        await asyncio.sleep(0)
        answers = [await batcher.publish("t", Message(b"")) for _ in range(6)]
        running.cancel()
        turns = [answer.partition for answer in answers]

    assert sorted(turns) == [0, 0, 1, 1, 2, 2]
    assert turns[:3] == turns[3:]


async def test_an_answer_means_that_the_disk_has_it(tmp_path):
    async with opened(tmp_path) as hosts:
        await hosts.publisher.publish_batch("t", arrow_of(Message(b"v", message_id=b"1")))
        store = hosts.topics.get("t").partition(0).store
        assert (store.flushed_end, store.end) == (1, 1)


async def test_an_answer_for_several_partitions_means_that_the_disk_has_every_part(tmp_path):
    messages = [Message(b"", key=b"%d" % i, message_id=b"%d" % i) for i in range(40)]
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("t", 4)
        await hosts.publisher.publish_batch("t", arrow_of(*messages))
        ends = [(host.store.flushed_end, host.store.end) for host in topic.partitions]

    assert all(flushed == end > 0 for flushed, end in ends)


@pytest.mark.parametrize("count", [40, 10])
async def test_a_part_that_is_refused_keeps_no_other_from_being_written(tmp_path, count):
    messages = [Message(b"", key=b"%d" % i, message_id=b"%d" % i) for i in range(count)]
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("t", 4)
        topic.partitions[1].paused = "it is moved"
        with pytest.raises(Unavailable, match="it is moved"):
            await hosts.publisher.publish_batch("t", arrow_of(*messages))
        assert [host.store.end > 0 for host in topic.partitions] == [True, False, True, True]


async def test_few_rows_of_a_partition_are_written_in_order_and_their_repeats_found(tmp_path):
    messages = [Message(b"%d" % i, key=b"%d" % (i % 5), message_id=b"%d" % i) for i in range(12)]
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("t", 4)
        await hosts.publisher.publish_batch("t", arrow_of(*messages[6:7]))
        published = await hosts.publisher.publish_batch("t", arrow_of(*messages, messages[3]))
        logs = [values(host.store) for host in topic.partitions]

    assert published.duplicates is not None
    assert published.partitions is not None
    assert published.offsets is not None
    assert published.duplicates.tolist() == [6, 12]
    assert published.offsets[12] == published.offsets[3]
    for message, number, offset in zip(
        messages, published.partitions.tolist(), published.offsets.tolist(), strict=False
    ):
        assert logs[number][offset] == message.value
    for log in logs:
        fresh = [int(value or b"") for value in log if value != b"6"]
        assert fresh == sorted(fresh)


async def test_what_is_behind_a_refused_row_of_its_partition_does_not_overtake_it(
    tmp_path, monkeypatch
):
    messages = [Message(b"%d" % i, key=b"k%d" % (i % 2), message_id=b"%d" % i) for i in range(4)]
    append = PartitionHost.append_lone

    def refusing(
        host: PartitionHost, message_id: bytes, body: bytes, **options: int
    ) -> tuple[Offset, bool]:
        if message_id == b"0":
            raise StorageFull("no room for this one")
        return append(host, message_id, body, **options)

    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("t", 8)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionHost, "append_lone", refusing)
            with pytest.raises(StorageFull):
                await hosts.publisher.publish_batch("t", arrow_of(*messages))
        await hosts.publisher.publish_batch("t", arrow_of(*messages))
        logs = [values(host.store) for host in topic.partitions]

    assert sorted(log for log in logs if log) == [[b"0", b"2"], [b"1", b"3"]]


async def test_what_is_wrong_with_a_request_makes_no_topic(tmp_path):
    async with opened(tmp_path) as hosts:
        with pytest.raises(BadBatch):
            await hosts.publisher.publish_batch("t", b"not arrow")
        with pytest.raises(BadBatch):
            await hosts.publisher.publish_batch("t", b"")
        assert hosts.topics.all() == []


async def test_a_partition_that_is_not_there_is_refused(tmp_path):
    async with opened(tmp_path) as hosts:
        await hosts.topic("t", 2)
        with pytest.raises(NotFound):
            await hosts.publisher.publish_batch(
                "t", arrow_of(Message(b"v", message_id=b"1")), partition=2
            )


async def test_messages_for_later_reach_the_scheduler(tmp_path):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("t")
        due = [1, START_MS + 5_000, START_MS - 1, START_MS + 9_000]
        messages = [Message(b"", message_id=b"%d" % i, due_ms=Millis(d)) for i, d in enumerate(due)]
        await hosts.publisher.publish_batch("t", arrow_of(*messages))
        await hosts.publisher.publish_batch("t", arrow_of(*messages))
        scheduler = topic.partition(0).scheduler
        offsets, times = await scheduler.upcoming(0, 1 << 62, 10)
        assert (offsets.tolist(), times.tolist()) == ([2, 3], [START_MS + 5_000, START_MS + 9_000])


async def test_singles_share_a_batch(tmp_path):
    async def singles(hosts):
        async with asyncio.TaskGroup() as tasks:
            batcher = PublishBatcher(hosts.topics, Limits(), hosts.clock, linger_ms=1)
            running = tasks.create_task(batcher.run())
            await asyncio.sleep(0)
            answers = await asyncio.gather(
                *(batcher.publish("t", Message(b"%d" % i)) for i in range(100))
            )
            running.cancel()
        return answers, hosts.topics.get("t").partition(0).counters.batches

    async with opened(tmp_path) as hosts:
        await hosts.topic("t")
        task = asyncio.ensure_future(singles(hosts))
        answers, batches = await task

    assert sorted(answer.offset for answer in answers) == list(range(100))
    assert len({answer.message_id for answer in answers}) == 100
    assert batches == 1


@asynccontextmanager
async def batching(hosts: Hosts, *, linger_ms: int) -> AsyncIterator[PublishBatcher]:
    """Run a batcher with a topic `t`."""
    await hosts.topic("t")
    async with asyncio.TaskGroup() as tasks:
        batcher = PublishBatcher(hosts.topics, Limits(), hosts.clock, linger_ms=linger_ms)
        running = tasks.create_task(batcher.run())
        await asyncio.sleep(0)
        yield batcher
        running.cancel()


async def test_a_single_waits_for_nobody_where_nothing_is_being_stored(tmp_path):
    async with opened(tmp_path) as hosts, batching(hosts, linger_ms=3_600_000) as batcher:
        answers = [await batcher.publish("t", Message(b"x")) for _ in range(3)]

        assert [answer.offset for answer in answers] == [0, 1, 2]


async def test_singles_wait_while_others_are_being_stored_and_then_go_together(
    tmp_path, monkeypatch
):
    async with opened(tmp_path) as hosts, batching(hosts, linger_ms=3_600_000) as batcher:
        publishes = GatedPublishes(monkeypatch)
        calls = []
        for _ in range(4):
            calls.append(asyncio.ensure_future(batcher.publish("t", Message(b"x"))))
            await publishes.came(1)
        publishes.gate.set()
        await asyncio.gather(*calls)

        await publishes.came(1, 3)


async def test_singles_wait_for_others_where_the_last_ones_had_company(tmp_path, monkeypatch):
    monkeypatch.setattr(batcher_module, "BATCH_MESSAGES_MAX", COMPANY_MIN)
    monkeypatch.setattr(batcher_module, "COMPANY_S", 3_600.0)
    async with opened(tmp_path) as hosts, batching(hosts, linger_ms=3_600_000) as batcher:
        publishes = GatedPublishes(monkeypatch)
        publishes.gate.set()
        for _ in range(2):
            calls = []
            for _ in range(COMPANY_MIN):
                calls.append(asyncio.ensure_future(batcher.publish("t", Message(b"x"))))
                if publishes.counts:  # the others come later, and nothing is being stored
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
            await asyncio.gather(*calls)

        await publishes.came(COMPANY_MIN, COMPANY_MIN)


async def test_a_lone_single_does_not_wait_for_company_that_was_long_ago(tmp_path, monkeypatch):
    monkeypatch.setattr(batcher_module, "BATCH_MESSAGES_MAX", COMPANY_MIN)
    monkeypatch.setattr(batcher_module, "COMPANY_S", 0.0)
    async with opened(tmp_path) as hosts, batching(hosts, linger_ms=3_600_000) as batcher:
        together = [batcher.publish("t", Message(b"x")) for _ in range(COMPANY_MIN)]
        await asyncio.gather(*together)

        assert (await batcher.publish("t", Message(b"alone"))).offset == COMPANY_MIN


async def test_singles_wait_no_longer_than_they_may_for_others_to_be_stored(tmp_path, monkeypatch):
    async with opened(tmp_path) as hosts, batching(hosts, linger_ms=1) as batcher:
        publishes = GatedPublishes(monkeypatch)
        calls = [asyncio.ensure_future(batcher.publish("t", Message(b"x")))]
        await publishes.came(1)
        calls.append(asyncio.ensure_future(batcher.publish("t", Message(b"x"))))
        await publishes.came(1, 1)
        publishes.gate.set()

        assert [answer.offset for answer in await asyncio.gather(*calls)] == [0, 1]


async def test_singles_that_wait_are_sent_when_those_before_them_are_refused(tmp_path, monkeypatch):
    async with opened(tmp_path) as hosts, batching(hosts, linger_ms=3_600_000) as batcher:
        publishes = GatedPublishes(monkeypatch)
        too_large = Message(b"x" * (Limits().message_bytes_max + 1))
        wrong = asyncio.ensure_future(batcher.publish("t", too_large))
        await asyncio.sleep(0)
        right = [asyncio.ensure_future(batcher.publish("t", Message(b"x"))) for _ in range(2)]
        publishes.gate.set()

        with pytest.raises(LimitExceeded):
            await wrong
        assert [answer.offset for answer in await asyncio.gather(*right)] == [0, 1]


async def test_nobody_suffers_for_a_neighbours_mistake(tmp_path):
    limits = Limits(message_bytes_max=1_000, batch_bytes_max=10_000)

    async with opened(tmp_path) as hosts, asyncio.TaskGroup() as tasks:
        await hosts.topic("t")
        batcher = PublishBatcher(hosts.topics, limits, hosts.clock, linger_ms=1)
        running = tasks.create_task(batcher.run())
        await asyncio.sleep(0)
        values = [b"ok", b"x" * 2_000, b"ok", b"y" * 900]
        answers = await asyncio.gather(
            *(batcher.publish("t", Message(value)) for value in values * 20),
            return_exceptions=True,
        )
        running.cancel()

    assert [isinstance(answer, LimitExceeded) for answer in answers] == [
        False, True, False, False,
    ] * 20  # fmt: skip
    assert not any(isinstance(answer, BaseException) for answer in answers[::2])


async def test_a_gathering_that_stops_answers_everyone(tmp_path):
    async with opened(tmp_path) as hosts:
        await hosts.topic("t")
        async with asyncio.TaskGroup() as tasks:
            batcher = PublishBatcher(hosts.topics, Limits(), hosts.clock, linger_ms=60_000)
            running = tasks.create_task(batcher.run())
            await asyncio.sleep(0)
            waiting = [asyncio.ensure_future(batcher.publish("t", Message(b"x"))) for _ in range(3)]
            await asyncio.sleep(0)
            running.cancel()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(Stopping):
            await batcher.publish("t", Message(b"late"))
        assert [type(answer) for answer in answers] == [Stopping] * 3


async def test_a_full_batch_does_not_wait_for_company(tmp_path):
    async with opened(tmp_path) as hosts:
        await hosts.topic("t")
        async with asyncio.TaskGroup() as tasks:
            batcher = PublishBatcher(hosts.topics, Limits(), hosts.clock, linger_ms=3_600_000)
            running = tasks.create_task(batcher.run())
            await asyncio.sleep(0)
            await asyncio.gather(
                *(batcher.publish("t", Message(b"x")) for _ in range(BATCH_MESSAGES_MAX))
            )
            running.cancel()


def test_helpers_speak_of_the_same_defaults(tmp_path):
    assert config_in(tmp_path).limits == Config().limits
    assert batch_of(Message(b"")).count == 1
