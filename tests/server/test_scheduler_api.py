"""Pending messages and recurrences over real sockets, against a real node whose clock stands."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from grpc import StatusCode

from tests.kit.clock import ManualClock
from tests.server.served import arrow_of, failure, running_server
from waterclock.model.ids import Millis
from waterclock.model.limits import END_MS
from waterclock.model.message import Message
from waterclock.node.schedule.pending_pages import timer_id
from waterclock.v1 import broker_pb2 as broker
from waterclock.v1 import scheduler_pb2 as pb

NOW = 1_700_000_000_000
HOUR = 3_600_000


async def schedule(it, *ids: bytes, key: bytes | None = None, after_ms: int = HOUR) -> None:
    messages = [
        Message(
            b"v-" + id_,
            key=key,
            message_id=id_,
            headers={"kind": b"a" if i % 2 else b"b"},
            due_ms=Millis(NOW + after_ms + i),
        )
        for i, id_ in enumerate(ids)
    ]
    request = broker.PublishBatchRequest(topic="orders", arrow=arrow_of(*messages))
    await it.broker.PublishBatch(request)


def by_id(*ids: bytes) -> list[pb.Pending]:
    return [pb.Pending(message_id=id_) for id_ in ids]


def at(partition: int, offset: int) -> pb.Pending:
    return pb.Pending(position=broker.Position(partition=partition, offset=offset))


async def listed(it, **fields) -> list[bytes]:
    answer = await it.scheduler.ListScheduled(pb.ListScheduledRequest(topic="orders", **fields))
    return [one.message.message_id for one in answer.scheduled]


async def test_a_pending_message_is_cancelled_by_id_or_position_once(tmp_path):
    async with running_server(tmp_path, clock=ManualClock(NOW)) as it:
        await schedule(it, b"1", b"2", b"3")
        pending = [*by_id(b"1", b"nobody"), at(0, 1), at(0, 77)]
        answer = await it.scheduler.Cancel(pb.CancelRequest(topic="orders", pending=pending))

        assert list(answer.outcomes) == [
            pb.OUTCOME_DONE,
            pb.OUTCOME_UNKNOWN,
            pb.OUTCOME_DONE,
            pb.OUTCOME_UNKNOWN,
        ]
        assert await listed(it) == [b"3"]


async def test_pending_messages_are_moved_one_by_one_or_together(tmp_path):
    async with running_server(tmp_path, clock=ManualClock(NOW)) as it:
        await schedule(it, b"1", b"2", b"3")
        request = pb.RescheduleRequest(
            topic="orders",
            pending=by_id(b"1", b"2"),
            due_ms=[NOW + 9 * HOUR, NOW + 8 * HOUR],
        )
        answer = await it.scheduler.Reschedule(request)
        assert list(answer.outcomes) == [pb.OUTCOME_DONE] * 2
        assert await listed(it) == [b"3", b"2", b"1"]

        together = pb.RescheduleRequest(
            topic="orders", pending=by_id(b"1", b"2", b"3"), due_ms=[NOW + HOUR]
        )
        await it.scheduler.Reschedule(together)
        assert await listed(it) == [b"1", b"2", b"3"]


async def test_a_list_has_pages_filters_and_values_if_asked_for(tmp_path):
    async with running_server(tmp_path, clock=ManualClock(NOW)) as it:
        await schedule(it, *(b"%d" % i for i in range(5)), key=b"k1")
        await schedule(it, b"x", key=b"other", after_ms=5 * HOUR)
        request = pb.ListScheduledRequest(topic="orders", limit=4, with_values=True)
        first = await it.scheduler.ListScheduled(request)
        request.page = first.next_page
        second = await it.scheduler.ListScheduled(request)

        assert [s.message.message_id for s in first.scheduled] == [b"0", b"1", b"2", b"3"]
        assert [s.message.message_id for s in second.scheduled] == [b"4", b"x"]
        assert second.next_page == ""
        one = first.scheduled[0]
        assert (one.partition, one.offset, one.timer_id) == (0, 0, "0-0")
        assert (one.message.value, one.value_bytes) == (b"v-0", 3)
        assert one.message.due_ms == NOW + HOUR
        assert await listed(it, filter=pb.Filter(key_prefix=b"oth")) == [b"x"]
        assert await listed(it, filter=pb.Filter(key=b"k1", headers={"kind": b"a"})) == [
            b"1",
            b"3",
        ]
        assert await listed(it, filter=pb.Filter(start_ms=NOW + 2 * HOUR)) == [b"x"]
        lean = await it.scheduler.ListScheduled(pb.ListScheduledRequest(topic="orders"))
        assert not lean.scheduled[0].message.HasField("value")
        assert lean.scheduled[0].value_bytes == 3


async def test_all_that_match_are_cancelled(tmp_path):
    async with running_server(tmp_path, clock=ManualClock(NOW)) as it:
        await schedule(it, *(b"%d" % i for i in range(6)), key=b"k")
        wanted = pb.Filter(headers={"kind": b"a"})
        dry = pb.CancelWhereRequest(topic="orders", filter=wanted, dry_run=True)
        counted = await it.scheduler.CancelWhere(dry)
        done = await it.scheduler.CancelWhere(pb.CancelWhereRequest(topic="orders", filter=wanted))
        everything = pb.CancelWhereRequest(topic="orders")
        code, details, _ = await failure(it.scheduler.CancelWhere(everything))
        everything.all = True
        rest = await it.scheduler.CancelWhere(everything)

        assert (counted.matched, counted.cancelled) == (3, 0)
        assert (done.matched, done.cancelled) == (3, 3)
        assert code == StatusCode.INVALID_ARGUMENT
        assert details.startswith("filter: an empty one cancels everything")
        assert (rest.matched, rest.cancelled) == (3, 3)


async def test_pending_messages_are_counted_by_horizon(tmp_path):
    async with running_server(tmp_path, clock=ManualClock(NOW)) as it:
        await schedule(it, b"1", after_ms=1_000)
        await schedule(it, b"2", b"3", after_ms=HOUR - 10)
        await schedule(it, b"4", after_ms=300 * 24 * HOUR)
        counts = await it.scheduler.CountScheduled(pb.CountScheduledRequest(topic="orders"))
        all_topics = await it.scheduler.CountScheduled(pb.CountScheduledRequest())
        asked = pb.CountScheduledRequest(start_ms=NOW, step_ms=HOUR // 2, steps=3)
        by_step = await it.scheduler.CountScheduled(asked)

        assert list(by_step.counts) == [1, 2, 0]
        found = {horizon.within_ms: horizon.count for horizon in counts.horizons}
        assert found == {0: 0, 60_000: 1, HOUR: 2, 24 * HOUR: 0, 30 * 24 * HOUR: 0, -1: 1}
        assert counts.total == all_topics.total == 4


async def test_the_next_times_of_a_rule_are_told_in_its_zone(tmp_path):
    async with running_server(tmp_path, clock=ManualClock(NOW)) as it:
        asked = pb.ListTimesRequest(cron="0 9 * * MON", zone="Europe/Berlin")
        weekly = (await it.scheduler.ListTimes(asked)).times_ms
        asked = pb.ListTimesRequest(every_ms=90_000, start_ms=NOW, count=3)
        fixed = (await it.scheduler.ListTimes(asked)).times_ms
        asked = pb.ListTimesRequest(every_ms=90_000, start_ms=END_MS - 90_000)
        last = (await it.scheduler.ListTimes(asked)).times_ms

    local = [datetime.fromtimestamp(ms / 1_000, ZoneInfo("Europe/Berlin")) for ms in weekly]
    assert [(each.isoweekday(), each.hour, each.minute) for each in local] == [(1, 9, 0)] * 10
    assert [ms - NOW for ms in fixed] == [90_000, 180_000, 270_000]
    assert list(last) == [END_MS]


async def test_bad_requests_are_refused(tmp_path):
    async with running_server(tmp_path, clock=ManualClock(NOW)) as it:
        await schedule(it, b"1")
        for method, request, code in BAD:
            got, details, facts = await failure(getattr(it.scheduler, method)(request))

            assert (got, "error" in facts) == (code, True), (method, request, details)
        assert await listed(it) == [b"1"]


BAD: list[tuple[str, Any, StatusCode]] = [
    (
        "ListTimes",
        pb.ListTimesRequest(every_ms=90_000, start_ms=2**63 - 1),
        StatusCode.INVALID_ARGUMENT,
    ),
    ("Cancel", pb.CancelRequest(topic="orders"), StatusCode.INVALID_ARGUMENT),
    ("Cancel", pb.CancelRequest(topic="no", pending=by_id(b"1")), StatusCode.NOT_FOUND),
    (
        "Cancel",
        pb.CancelRequest(topic="orders", pending=[pb.Pending()]),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "Cancel",
        pb.CancelRequest(topic="orders", pending=[at(0, -1)]),
        StatusCode.INVALID_ARGUMENT,
    ),
    ("Cancel", pb.CancelRequest(topic="orders", pending=[at(3, 0)]), StatusCode.NOT_FOUND),
    (
        "Reschedule",
        pb.RescheduleRequest(topic="orders", pending=by_id(b"1")),
        StatusCode.INVALID_ARGUMENT,
    ),
    ("Reschedule", pb.RescheduleRequest(topic="orders"), StatusCode.INVALID_ARGUMENT),
    (
        "Reschedule",
        pb.RescheduleRequest(topic="orders", pending=by_id(b"1"), due_ms=[1 << 62]),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "Reschedule",
        pb.RescheduleRequest(topic="orders", pending=by_id(b"1", b"2"), due_ms=[1, 2, 3]),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "ListScheduled",
        pb.ListScheduledRequest(topic="orders", limit=-1),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "ListScheduled",
        pb.ListScheduledRequest(topic="orders", limit=1_000_000),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "ListScheduled",
        pb.ListScheduledRequest(topic="orders", page="nonsense"),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "ListScheduled",
        pb.ListScheduledRequest(topic="orders", filter=pb.Filter(start_ms=5, end_ms=4)),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "ListScheduled",
        pb.ListScheduledRequest(topic="orders", filter=pb.Filter(partitions=[7])),
        StatusCode.NOT_FOUND,
    ),
    ("CountScheduled", pb.CountScheduledRequest(topic="no"), StatusCode.NOT_FOUND),
    (
        "CountScheduled",
        pb.CountScheduledRequest(step_ms=1, steps=1),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "CountScheduled",
        pb.CountScheduledRequest(step_ms=HOUR, steps=1_001),
        StatusCode.INVALID_ARGUMENT,
    ),
    ("ListTimes", pb.ListTimesRequest(), StatusCode.INVALID_ARGUMENT),
    ("ListTimes", pb.ListTimesRequest(cron="@daily", zone="Mars"), StatusCode.INVALID_ARGUMENT),
    ("ListTimes", pb.ListTimesRequest(cron="@daily", count=101), StatusCode.INVALID_ARGUMENT),
    (
        "PutRecurrence",
        pb.PutRecurrenceRequest(recurrence=pb.Recurrence(name="r", topic="orders")),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "PutRecurrence",
        pb.PutRecurrenceRequest(
            recurrence=pb.Recurrence(name="r", topic="orders", cron="61 * * * *")
        ),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "PutRecurrence",
        pb.PutRecurrenceRequest(
            recurrence=pb.Recurrence(
                name="r", topic="orders", cron="0 8 * * *", zone="Mars/Olympus"
            )
        ),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "PutRecurrence",
        pb.PutRecurrenceRequest(
            recurrence=pb.Recurrence(
                name="r",
                topic="orders",
                every_ms=1_000,
                message=broker.Message(message_id=b"mine"),
            )
        ),
        StatusCode.INVALID_ARGUMENT,
    ),
]


async def test_a_recurrence_is_put_listed_and_deleted(tmp_path):
    async with running_server(tmp_path, clock=ManualClock(NOW)) as it:
        recurrence = pb.Recurrence(
            name="daily",
            topic="orders",
            cron="0 8 * * *",
            zone="Europe/Berlin",
            message=broker.Message(key=b"k", value=b"v", headers={"a": b"1"}),
            expires_after_ms=HOUR,
        )
        put = await it.scheduler.PutRecurrence(pb.PutRecurrenceRequest(recurrence=recurrence))
        every = pb.Recurrence(name="often", topic="t2", every_ms=60_000)
        await it.scheduler.PutRecurrence(pb.PutRecurrenceRequest(recurrence=every))
        of_topic = await it.scheduler.ListRecurrences(pb.ListRecurrencesRequest(topic="orders"))
        everything = await it.scheduler.ListRecurrences(pb.ListRecurrencesRequest())

        assert put.next_ms == 1_700_031_600_000  # 2023-11-15 08:00 in Berlin
        recurrence.next_ms = put.next_ms
        assert list(of_topic.recurrences) == [recurrence]
        recurrence.made_partitions = 1
        assert put == recurrence
        assert [one.name for one in everything.recurrences] == ["daily", "often"]
        assert len(await listed(it)) == 1
        paused = await it.scheduler.PauseRecurrence(pb.PauseRecurrenceRequest(name="daily"))
        assert (paused.is_paused, paused.next_ms, await listed(it)) == (True, 0, [])
        resumed = await it.scheduler.ResumeRecurrence(pb.ResumeRecurrenceRequest(name="daily"))
        assert [resumed] == list(of_topic.recurrences)
        assert len(await listed(it)) == 1
        none = pb.PauseRecurrenceRequest(name="none")
        code, details, _ = await failure(it.scheduler.PauseRecurrence(none))
        assert (code, details) == (StatusCode.NOT_FOUND, "there is no recurrence 'none'")
        deleted = await it.scheduler.DeleteRecurrence(pb.DeleteRecurrenceRequest(name="daily"))
        again = await it.scheduler.DeleteRecurrence(pb.DeleteRecurrenceRequest(name="daily"))
        assert (deleted.existed, again.existed) == (True, False)
        assert await listed(it) == []


def test_a_timer_id_is_text_whatever_the_id():
    assert timer_id(b"order-7", 12) == "order-7-12"
    assert timer_id(b"\x00\xff", 12) == "00ff-12"
