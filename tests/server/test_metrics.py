"""The text of /metrics: it parses, and it moves."""

import asyncio
import time

from prometheus_client.parser import text_string_to_metric_families

from tests.kit.clock import ManualClock
from tests.server.http_client import raw_client, until
from tests.server.members import Member
from tests.server.served import arrow_of, running_server
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import ServerConfig
from waterclock.model.units import KIB
from waterclock.node.groups.groups import Groups
from waterclock.node.topics import Topic
from waterclock.server import metrics
from waterclock.server.metrics import LoopWatch
from waterclock.v1 import admin_pb2 as admin
from waterclock.v1 import broker_pb2 as pb

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(it) -> Samples:
    async with raw_client(it.server.http_port) as client:
        answer = await client.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples["waterclock_" + name, tuple(sorted(labels.items()))]


async def test_counters_move_with_what_happens(tmp_path):
    clock = ManualClock()
    async with running_server(tmp_path, clock=clock) as it:
        await it.publish(b"a", b"b")
        await it.publish(b"b", b"c")
        due_ms = Millis(clock.now_ms() + 1_000)
        late = arrow_of(Message(b"l", message_id=b"late", due_ms=due_ms))
        await it.broker.PublishBatch(pb.PublishBatchRequest(topic="orders", arrow=late))
        before = await scrape(it)
        member = Member(it)
        await member.open()
        delivery = await member.delivery()
        await member.answer(pb.Answer.ACK, delivery, bounds=[0, 2])
        await member.answer(pb.Answer.REJECT, delivery, bounds=[2, 3])
        await member.say(leave=True)
        await member.ended()
        clock.advance(10_000)
        it.node.topics.get("orders").partition(0).scheduler.wake()
        await it.node.topics.get("orders").partition(0).flush_queue.wait_flushed(5)
        after = await scrape(it)

        place = {"topic": "orders", "partition": "0"}
        group = {"topic": "orders", "group": "g"}
        assert value(before, "published_messages_total", **place) == 4
        assert value(before, "duplicate_messages_total", **place) == 1
        assert value(before, "published_bytes_total", **place) > 0
        assert value(before, "log_end_offset", **place) == 4
        assert value(before, "log_bytes", **place) > 0
        assert value(before, "scheduled_messages", topic="orders", horizon="1m") == 1
        assert value(before, "publish_seconds_count") == 3
        assert value(before, "fsync_seconds_count") > 0
        assert value(after, "fired_messages_total", **place) == 1
        assert value(after, "scheduled_messages", topic="orders", horizon="1m") == 0
        assert value(after, "schedule_lateness_seconds_count") == 1
        assert value(after, "delivered_messages_total", **group) == 3
        assert value(after, "acked_messages_total", **group) == 2
        assert value(after, "rejected_messages_total", **group) == 1
        assert value(after, "group_members", **group) == 0
        assert value(after, "group_lag_messages", **group, partition="0") >= 1
        call = {"method": "Broker/PublishBatch", "code": "OK"}
        assert value(after, "grpc_calls_total", **call) == 3
        assert value(after, "grpc_call_seconds_count", method="Broker/PublishBatch") == 3
        assert value(after, "ready") == 1
        assert value(after, "disk_full") == 0
        assert 0 < value(after, "disk_free_bytes") <= value(after, "disk_bytes")
        assert ("process_open_fds", ()) in after


async def test_a_histogram_is_cumulative_and_in_seconds(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        histogram = it.node.topics.get("orders").partition(0).counters.fsync_ms
        histogram.counts = [0] * len(histogram.counts)
        histogram.total = 0.0
        for ms in (0.5, 3, 3, 99_999):
            histogram.observe(ms)
        samples = await scrape(it)

        buckets = {
            float(labels[0][1]): count
            for (name, labels), count in samples.items()
            if name == "waterclock_fsync_seconds_bucket"
        }
        assert buckets[0.001] == 1
        assert buckets[0.002] == 1
        assert buckets[0.005] == 3
        assert buckets[10.0] == 3
        assert buckets[float("inf")] == 4
        assert round(value(samples, "fsync_seconds_sum"), 6) == 100.0055


async def test_who_asks_again_at_once_gets_the_same_text(tmp_path):
    clock = ManualClock()
    async with running_server(tmp_path, clock=clock) as it:
        place = {"topic": "orders", "partition": "0"}
        await it.publish(b"a")
        seen = [await scrape(it)]
        await it.publish(b"b")
        seen.append(await scrape(it))
        clock.advance(1_000)
        seen.append(await scrape(it))

        counts = [value(samples, "published_messages_total", **place) for samples in seen]
        assert counts == [1, 1, 2]


async def test_a_large_family_is_made_in_steps_and_its_head_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "CHUNK", 2)

    async with running_server(tmp_path) as it:
        settings = admin.TopicSettings(partitions=7)
        await it.admin.CreateTopic(admin.CreateTopicRequest(topic="orders", settings=settings))
        async with raw_client(it.server.http_port) as client:
            text = (await client.get("/metrics")).body.decode()

        assert text.count("# TYPE waterclock_log_end_offset gauge") == 1
        assert text.count("waterclock_log_end_offset{") == 7
        list(text_string_to_metric_families(text))


async def test_a_topic_deleted_in_the_middle_of_a_scrape_does_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "CHUNK", 1)

    async with running_server(tmp_path) as it:
        for i in range(10):
            await it.publish(b"a", topic=f"t{i}")
            member = Member(it, topic=f"t{i}")
            await member.open()
            await member.say(leave=True)
            await member.ended()
        scraping = asyncio.ensure_future(scrape(it))
        for i in range(10):
            await it.admin.DeleteTopic(admin.DeleteTopicRequest(topic=f"t{i}"))

        assert value(await scraping, "ready") == 1


async def test_a_thousand_groups_make_no_long_answer_and_those_behind_are_shown(tmp_path):
    async with running_server(tmp_path, clock=ManualClock()) as it:
        await it.publish(b"a", b"b", b"c")
        member = Member(it)
        await member.open()
        await member.delivery()
        topic = it.node.topics.get("orders")
        for number in range(1_000):
            _add_group(it.node.groups, topic, f"group-{number:05}", committed=3)
        for number in (17, 9_999):
            _add_group(it.node.groups, topic, f"behind-{number:05}", committed=1)
        async with raw_client(it.server.http_port) as client:
            text = (await client.get("/metrics")).body
        samples = await scrape(it)

        assert len(text) <= 256 * KIB
        lag = {
            dict(labels)["group"]: lag
            for (name, labels), lag in samples.items()
            if name == "waterclock_group_lag_messages"
        }
        assert len(lag) == 101
        assert (lag["g"], lag["behind-00017"], lag["behind-09999"], lag["(other)"]) == (3, 2, 2, 0)
        group = {"topic": "orders", "group": "g"}
        assert value(samples, "group_members", **group) == 1
        assert value(samples, "delivered_messages_total", **group) == 3
        assert value(samples, "metrics_hidden_groups") == 1_003 - 100
        assert value(samples, "metrics_hidden_group_partitions") == 1_003 - 100


async def test_what_is_not_shown_of_groups_is_summed(tmp_path):
    server = ServerConfig(metrics_groups_max=1)
    async with running_server(tmp_path, server=server) as it:
        await it.publish(b"a", b"b", b"c")
        topic = it.node.topics.get("orders")
        for committed in range(3):
            _add_group(it.node.groups, topic, f"at-{committed}", committed=committed)
        samples = await scrape(it)

        other = {"topic": "(other)", "group": "(other)"}
        shown = {"topic": "orders", "group": "at-0", "partition": "0"}
        assert value(samples, "group_lag_messages", **shown) == 3
        assert value(samples, "group_lag_messages", **other, partition="(other)") == 2 + 1
        assert value(samples, "group_members", **other) == 0
        assert value(samples, "metrics_hidden_groups") == 2


def _add_group(groups: Groups, topic: Topic, name: str, *, committed: int) -> None:
    """Add a group that is nowhere but in memory."""
    partitions = [groups._partition(topic, host, None, "run") for host in topic.partitions]
    for partition in partitions:
        groups._begin(topic, partition, committed)
    groups._add(topic, name, partitions, 0, groups._metadata)


async def test_a_stall_of_the_loop_is_noted_once():
    watch = LoopWatch()
    beating = asyncio.ensure_future(watch.run())
    await until(lambda: watch.stall_ms.count)
    watch.stall_ms.counts = [0] * len(watch.stall_ms.counts)
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.15:
        pass  # nobody else runs
    await until(lambda: watch.stall_ms.count)
    beating.cancel()

    long = watch.stall_ms.counts[watch.stall_ms.bounds.index(100) + 1 :]
    assert (sum(long), watch.stall_ms.count) == (1, 1)
