"""The client and a real node: everything the client offers, over real sockets and a real disk."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import waterclock
from tests.server.served import running_server
from waterclock.client.client import Client, connect
from waterclock.client.due import Cron, Every
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import (
    AlreadyExists,
    BadBatch,
    BadInput,
    Busy,
    LimitExceeded,
    NotFound,
    OffsetOutOfRange,
    UnknownTopic,
)
from waterclock.model.message import Message
from waterclock.model.sections import ClusterConfig, DeliveryConfig, ScheduleConfig, ServerConfig
from waterclock.model.views import Position, Recurrence


@contextlib.asynccontextmanager
async def connected(folder: Path, **sections: Any) -> AsyncIterator[Client]:
    sections.setdefault("schedule", ScheduleConfig(tick_ms=10))
    async with (
        running_server(folder, **sections) as served,
        connect(served.server.addresses.grpc, ClientSettings(retry_delay_ms=1)) as client,
    ):
        yield client


async def take(client: Client, topic: str, count: int, group: str = "billing") -> list[Any]:
    found = []
    async with client.subscribe(topic, group=group) as messages:
        async for message in messages:
            found.append(message)
            message.ack()
            if len(found) == count:
                return found
    return found


async def test_a_message_for_later_comes_when_it_is_due(tmp_path):
    async with connected(tmp_path) as client:
        now = await client.publish("orders", b"now")
        later = await client.publish("orders", b"later", at=timedelta(milliseconds=50))
        first, second = await take(client, "orders", 2)

        assert (first.value, first.id, first.due) == (b"now", now.message_id, None)
        assert (second.value, second.id) == (b"later", later.message_id)
        assert second.due is not None
        assert second.appended >= second.due


async def test_what_is_planned_can_be_found_moved_and_cancelled(tmp_path):
    async with connected(tmp_path) as client:
        near = await client.publish("orders", b"near", at="+1h", key=b"a-1", headers={"h": b"1"})
        far = await client.publish("orders", b"far", at="+2d", key=b"a-2")
        past = await client.publish("orders", b"past", at="+100ms")
        await take(client, "orders", 1)

        found = [each async for each in client.scheduled("orders", page_size=1)]
        assert [each.offset for each in found] == [near.offset, far.offset]
        assert found[0].headers == {"h": b"1"}
        assert found[0].value is None
        assert found[0].value_bytes == 4
        assert sum(each.count for each in await client.count_scheduled("orders")) == 2
        other = await client.publish("other", b"other", at="+1d")
        found = [each async for each in client.scheduled(page_size=1)]
        assert [each.message_id for each in found] == [
            each.message_id for each in (near, other, far)
        ]
        assert [each.topic for each in found] == ["orders", "other", "orders"]
        counts = await client.count_scheduled_by_topic()
        assert [(each.topic, each.count) for each in counts] == [("orders", 2), ("other", 1)]
        assert [each.next_due for each in counts] == [found[0].due, found[1].due]

        assert await client.reschedule("orders", near, at="+3d") == "moved"
        found = [each async for each in client.scheduled("orders", with_values=True)]
        assert [each.value for each in found] == [b"far", b"near"]
        early = client.scheduled("orders", end="+60h")
        assert [each.key async for each in early] == [b"a-2"]

        assert await client.cancel("orders", far.message_id, key=b"other") == "unknown"
        outcome = await client.cancel("orders", far.message_id, key=b"a-2")
        assert (outcome, outcome.reached) == ("cancelled", 1)
        again = await client.cancel("orders", far.message_id, key=b"a-2")
        assert (again, again.reached) == ("cancelled", 0)
        assert await client.reschedule("orders", far.message_id, "+1h") == "cancelled"
        assert await client.cancel("orders", past.message_id) == "already fired"
        assert await client.cancel("orders", b"nobody's") == "unknown"
        counted = await client.cancel_where("orders", key_prefix=b"a-", dry_run=True)
        assert (counted.matched, counted.cancelled) == (1, 0)
        assert (await client.cancel_where("orders", headers={"h": b"1"})).cancelled == 1
        with pytest.raises(BadInput):
            await client.cancel_where("orders")
        assert [each async for each in client.scheduled("orders")] == []


async def test_many_are_cancelled_and_moved_in_one_call(tmp_path):
    async with connected(tmp_path) as client:
        due_ms = client._connection.now_ms() + 3_600_000
        plans = [Message(b"%d" % n, due_ms=due_ms) for n in range(100)]  # type: ignore[arg-type]
        receipts = await client.publish_many("orders", plans)

        moved = await client.reschedule_many("orders", receipts[:50], at="+2h")
        assert moved == ["moved"] * 50
        ids = [receipt.message_id for receipt in receipts]
        assert await client.cancel_many("orders", [*ids, b"?"]) == (
            ["cancelled"] * 100 + ["unknown"]
        )


async def test_a_rule_makes_a_recurrence(tmp_path):
    async with connected(tmp_path) as client:
        daily = await client.publish("orders", b"x", at=Cron("0 9 * * *", "Europe/Berlin"))
        again = await client.publish("orders", b"x", at="cron: 0 9 * * * Europe/Berlin")
        assert isinstance(again, Recurrence)
        assert (daily.name, daily.next) == (again.name, again.next)
        assert daily.next is not None
        assert daily.next > datetime.now(UTC)

        hourly = await client.repeat("tidy", "orders", b"y", every="1h", key=b"k", jitter="1m")
        assert (hourly.name, hourly.every_ms, hourly.cron) == ("tidy", 3_600_000, None)
        assert {each.name for each in await client.recurrences("orders")} == {
            daily.name,
            "tidy",
        }
        paused = await client.pause_repeating(hourly)
        assert (paused.is_paused, paused.next) == (True, None)
        assert (await client.resume_repeating("tidy")).next == hourly.next
        with pytest.raises(NotFound, match="none"):
            await client.pause_repeating("none")
        assert await client.stop_repeating("tidy")
        assert await client.stop_repeating(daily)
        assert not await client.stop_repeating("tidy")
        for at, zone, cron in (
            ("every day at 9:00", "Europe/Berlin", "0 9 * * *"),
            ("0 9 * * MON", None, "0 9 * * MON"),
            ("every 5 minutes", None, None),
        ):
            repeated = await client.repeat("tidy", "orders", b"x", at=at, zone=zone)
            assert (repeated.cron, repeated.zone) == (cron, zone or "UTC")
        with pytest.raises(BadInput, match="is a single time"):
            await client.repeat("tidy", "orders", b"x", at="18:00")
        with pytest.raises(BadInput, match="one of at, cron and every"):
            await client.repeat("tidy", "orders", b"x", at="@daily", every="1h")
        with pytest.raises(BadInput, match="one of at, cron and every"):
            await client.repeat("tidy", "orders", b"y")
        with pytest.raises(BadInput, match="no message_id"):
            await client.publish("orders", b"x", at="@daily", message_id=b"id")
        with pytest.raises(BadInput, match="repeats: end it with stop_repeating"):
            await client.cancel("orders", daily)  # type: ignore[arg-type]


async def test_a_recurrence_repeats(tmp_path):
    async with connected(tmp_path) as client:
        await client.publish("orders", b"tick", at=Every("1s"))
        first, second = await take(client, "orders", 2)

        assert first.id != second.id
        assert second.due - first.due == timedelta(seconds=1)


async def test_what_expired_is_not_delivered(tmp_path):
    async with connected(tmp_path) as client:
        await client.publish("orders", b"stale", expires="2020-01-01T00:00Z")
        await client.publish("orders", b"fresh", expires="+1h")

        (only,) = await take(client, "orders", 1)
        assert only.value == b"fresh"


async def test_topics_are_made_changed_and_deleted(tmp_path):
    async with connected(tmp_path) as client:
        made = await client.topics.create("orders", partitions=2, retention="7d")
        assert (made.name, len(made.partitions)) == ("orders", 2)
        assert made.retention == timedelta(days=7)
        with pytest.raises(AlreadyExists) as caught:
            await client.topics.create("orders")
        assert (caught.value.what, caught.value.name) == ("topic", "orders")
        same = await client.topics.create("orders", partitions=9, if_absent=True)
        assert len(same.partitions) == 2

        changed = await client.topics.update(
            "orders",
            partitions=3,
            retention=timedelta(0),
            ack_timeout="5s",
            retries_max=1,
            replication_factor=2,
        )
        assert (len(changed.partitions), changed.retention) == (3, None)
        assert changed.replication_factor == 2
        assert (changed.ack_timeout, changed.retries_max) == (timedelta(seconds=5), 1)
        assert [topic.name for topic in await client.topics.list()] == ["orders"]
        assert await client.topics.find_offsets("orders", since="-1h") == {0: 0, 1: 0, 2: 0}
        with pytest.raises(NotFound, match="partition"):
            await client.publish("orders", b"x", partition=9)

        await client.topics.delete("orders")
        with pytest.raises(UnknownTopic, match="orders"):
            await client.topics.get("orders")


async def test_keys_and_partitions_decide_where_messages_go(tmp_path):
    async with connected(tmp_path) as client:
        await client.topics.create("orders", partitions=4)
        keyed = await asyncio.gather(
            *(client.publish("orders", b"x", key=b"%d" % (n % 8)) for n in range(64))
        )
        places = {n: {keyed[at].partition for at in range(n, 64, 8)} for n in range(8)}
        assert all(len(partitions) == 1 for partitions in places.values())
        assert (await client.publish("orders", b"x", partition=3)).partition == 3
        # Whoever names an id finds it again, key or no key.
        first = await client.publish("orders", b"x", message_id=b"mine")
        again = await asyncio.gather(
            client.publish("orders", b"y"), client.publish("orders", b"x", message_id=b"mine")
        )
        assert (again[1].partition, again[1].offset) == (first.partition, first.offset)
        assert not again[1].is_new
        assert len(await take(client, "orders", 67)) == 67


async def test_groups_are_looked_at_moved_and_deleted(tmp_path):
    async with connected(tmp_path) as client:
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(5)])
        await take(client, "orders", 5)

        group = await client.groups.get("orders", "billing")
        assert (group.lag, group.partitions[0].committed) == (0, 5)
        assert [each.name for each in await client.groups.list()] == ["billing"]
        await client.groups.seek("orders", "billing", {0: 3})
        assert [m.value for m in await take(client, "orders", 2)] == [b"3", b"4"]
        with pytest.raises(BadInput, match="names no partition"):
            await client.groups.seek("orders", "billing", {})
        await client.groups.seek("orders", "billing", "earliest")
        async with client.subscribe("orders", group="billing") as messages:
            assert (await anext(messages)).value == b"0"
            with pytest.raises(Busy):
                await client.groups.seek("orders", "billing", "latest")
        await client.groups.delete("orders", "billing")
        with pytest.raises(NotFound):
            await client.groups.get("orders", "billing")


async def test_dead_letters_are_looked_at_redriven_and_purged(tmp_path):
    async with connected(tmp_path) as client:
        sent = await client.publish_many("orders", [Message(b"%d" % n) for n in range(3)])
        async with client.subscribe("orders", group="billing") as messages:
            for _ in range(3):
                (await anext(messages)).reject()
        while await client.dead_letters.count("orders") < 3:
            pass  # they are written a moment later
        dead_letters = [letter async for letter in client.dead_letters.list("orders", page_size=2)]
        assert [letter.message_id for letter in dead_letters] == [r.message_id for r in sent]
        assert {letter.reason for letter in dead_letters} == {"rejected"}
        assert [letter.origin_offset for letter in dead_letters] == [0, 1, 2]

        assert await client.dead_letters.redrive("orders", dead_letters[:1]) == 1
        assert await client.dead_letters.redrive("orders", []) == 0
        assert await client.dead_letters.purge("orders", dead_letters[1:2]) == 1
        assert await client.dead_letters.count("orders") == 1
        assert await client.dead_letters.purge("orders") == 1
        (again,) = await take(client, "orders", 1)
        assert again.value == b"0"


async def test_a_failed_message_is_retried_when_the_consumer_says(tmp_path):
    async with connected(tmp_path) as client:
        await client.publish("orders", b"x")
        async with client.subscribe("orders", group="billing") as messages:
            first = await anext(messages)
            first.nack(retry_in=timedelta(milliseconds=20))
            second = await anext(messages)
            assert (first.attempt, second.attempt, first.id) == (1, 2, second.id)
            second.ack()


async def test_keep_alive_holds_a_message_beyond_its_lease(tmp_path):
    delivery = DeliveryConfig(ack_timeout_ms=1_000, retry_delay_ms=100)
    async with connected(tmp_path, delivery=delivery) as client:
        await client.publish("orders", b"long")
        async with client.subscribe("orders", group="billing", keep_alive=True) as messages:
            message = await anext(messages)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await anext(messages)  # it would come again
            assert message.ack()
        group = await client.groups.get("orders", "billing")
        assert group.lag == 0


async def test_a_replay_with_a_name_goes_on_where_it_was_left(tmp_path):
    async with connected(tmp_path) as client:
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(30)])
        everything = [message async for message in client.replay("orders")]
        assert [message.offset for message in everything] == [*range(30)]
        some = [message.offset async for message in client.replay("orders", offset=5, count=7)]
        assert some == [*range(5, 12)]
        since = client.replay("orders", since=timedelta(hours=1), until="+1h")
        assert len([message async for message in since]) == 30
        assert [m async for m in client.replay("orders", until=timedelta(hours=1))] == []

        named = client.replay("orders", name="audit", since=timedelta(hours=1))
        seen = [message.value async for message in named]
        assert len(seen) == 30
        # The same name with another beginning: it goes on, and there is no more.
        rest = client.replay("orders", name="audit", since=timedelta(hours=2))
        assert [message async for message in rest] == []
        (info,) = await client.replays.list()
        assert (info.name, info.done, info.ends) == (
            "audit",
            (Position(0, 30),),
            (Position(0, 30),),
        )
        with pytest.raises(AlreadyExists):
            _ = [message async for message in client.replay("others", name="audit")]
        assert await client.replays.delete("audit")
        assert not await client.replays.delete("audit")
        with pytest.raises(BadInput, match="either times or offsets"):
            client.replay("orders", since="-1h", offset=3)
        with pytest.raises(UnknownTopic):
            _ = [message async for message in client.replay("nowhere")]


async def test_a_replay_broken_off_comes_again_from_what_was_not_done(tmp_path):
    async with connected(tmp_path) as client:
        await client.topics.create("orders", partitions=3)
        for partition in range(3):
            await client.publish("orders", b"x", partition=partition)
        first = client.replay("orders", name="audit", checkpoint_every=1).batches()
        assert [(await anext(first)).partition for _ in range(2)] == [0, 1]
        await first.aclose()  # type: ignore[attr-defined]

        # The second was at hand, so it is not done; the first may be.
        again = [message.partition async for message in client.replay("orders", name="audit")]
        assert again[-2:] == [1, 2]


async def test_a_fetch_may_wait_longer_than_other_calls(tmp_path):
    async with connected(tmp_path) as first:
        await first.publish("orders", b"0")
        settings = ClientSettings(call_timeout_ms=100)
        async with connect(first._connection.address, settings) as client:
            fetched = await client.fetch("orders", 0, 1, wait_ms=300)

        assert fetched.table().num_rows == 0


async def stored_ms(client, topic, count):
    """Return when messages were stored, as those say that a subscription hands out."""
    async with client.subscribe(topic, group="g") as messages:
        times = [(await anext(messages)).appended for _ in range(count)]
    return [round(each.timestamp() * 1_000) for each in times]


async def test_frames_are_fetched_as_a_table(tmp_path):
    async with connected(tmp_path) as client:
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(3)])
        await client.publish("orders", b"later", at="+1h")
        await client.publish("orders", b"3")

        fetched = await client.fetch("orders", 0, 0)
        table = fetched.table()
        assert table.column("offset").to_pylist() == [0, 1, 2, 4]
        assert table.column("value").to_pylist() == [b"0", b"1", b"2", b"3"]
        assert table.column("append_ms").to_pylist() == await stored_ms(client, "orders", 4)
        assert (fetched.next_offset, fetched.start_offset, fetched.end_offset) == (5, 0, 5)
        raw = await client.fetch("orders", 0, 3, end_offset=4, deliverable_only=False)
        assert [frame.header.base_offset for frame in raw.frames()] == [3]
        with pytest.raises(OffsetOutOfRange) as caught:
            await client.fetch("orders", 0, 99)
        assert (caught.value.offset, caught.value.end) == (99, 5)


async def test_arrow_batches_are_published_as_they_are(tmp_path):
    async with connected(tmp_path) as client:
        rows = pa.record_batch({"value": ["a", "b"], "key": [b"k", None]})
        receipt = await client.publish_arrow("orders", rows)
        assert receipt.offsets.tolist() == [0, 1]
        assert receipt.is_new.all()
        named = pa.record_batch({"value": [b"c", b"d"], "message_id": [b"1", b"2"]})
        await client.publish_arrow("orders", named)
        again = await client.publish_arrow("orders", named.slice(1))
        assert (again.offsets.tolist(), again.is_new.tolist()) == ([3], [False])
        due = pa.array([datetime(2099, 1, 1, 0, 0, 0, 1, tzinfo=UTC)])
        await client.publish_arrow("orders", pa.record_batch({"value": [b"z"], "due_ms": due}))
        (later,) = [each async for each in client.scheduled("orders")]
        assert later.due == datetime(2099, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)

        for wrong, field in [
            (pa.record_batch({"key": [b"k"]}), "value"),
            (pa.record_batch({"value": [b"v"], "color": ["red"]}), "color"),
            (pa.record_batch({"value": [1.5]}), "value"),
            (
                pa.record_batch({"value": [b"v"], "due_ms": pa.array([datetime(2099, 1, 1)])}),
                "due_ms",
            ),
        ]:
            with pytest.raises(BadBatch) as caught:
                await client.publish_arrow("orders", wrong)
            assert caught.value.field == field
        assert len(await client.publish_arrow("orders", rows.slice(0, 0))) == 0


async def test_an_arrow_batch_too_large_for_the_node_goes_in_parts(tmp_path):
    async with connected(tmp_path) as client:
        client._producer._rows_max = 3
        rows = pa.record_batch({"value": [b"%d" % n for n in range(10)]})
        receipt = await client.publish_arrow("orders", rows)

        assert receipt.offsets.tolist() == [*range(10)]
        replayed = [message.value async for message in client.replay("orders")]
        assert replayed == [b"%d" % n for n in range(10)]


async def test_a_message_beyond_a_limit_the_client_does_not_know_fails_alone(tmp_path):
    async with connected(tmp_path) as client:
        answers = await asyncio.gather(
            *(client.publish("orders", b"x") for _ in range(10)),
            client.publish("orders", b"x", message_id=bytes(300)),
            client.publish("orders", b"x", key=bytes(70_000)),
            client.publish("orders", b"x", at="2500-01-01T00:00Z"),
            return_exceptions=True,
        )
        *fine, long_id, long_key, far = answers
        assert not any(isinstance(answer, Exception) for answer in fine)
        fields = [getattr(error, "field", None) for error in (long_id, long_key, far)]
        assert fields == ["message_id bytes", "key bytes", "due_ms"]
        assert all(isinstance(error, LimitExceeded) for error in (long_id, long_key, far))


async def test_the_node_tells_about_itself(tmp_path):
    async with connected(tmp_path) as client:
        node = await client.node()

        assert (node.name, node.version) == ("test", waterclock.__version__)
        assert node.message_bytes_max == 10 * 1024 * 1024


async def test_a_node_that_restarts_loses_nothing_and_nobody(tmp_path):
    # What is subscribed is not over by itself: the server ends it when the drain is over.
    async with running_server(tmp_path, server=ServerConfig(drain_ms=100)) as served:
        port = served.server.grpc_port
        client = connect(f"127.0.0.1:{port}", ClientSettings(retry_delay_ms=1))
        await client.__aenter__()
        messages = await client.subscribe("orders", group="billing").__aenter__()
        await client.publish_many("orders", [Message(b"%d" % n) for n in range(10)])
        seen = {(await anext(messages)).value for _ in range(3)}
        await served.server.stop()
    async with asyncio.TaskGroup() as tasks:
        meanwhile = tasks.create_task(client.publish("orders", b"meanwhile"))
        ports = ClusterConfig(grpc_port=port, http_port=0)
        async with running_server(tmp_path, cluster=ports) as served:
            assert (await meanwhile).offset == 10
            async for message in messages:
                seen.add(message.value)
                message.ack()
                if len(seen) == 11:
                    break
            await client.__aexit__(None, None, None)
