"""Messages for later: cancel, move, find, count, repeat.

A pending message is named by its receipt, or as listed; or all of an id are, by that id, which
the publisher knows.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta

from waterclock.client.calls import Calls
from waterclock.client.due import Cron, Every, Rule, When, instant_ms, rule_of, span_ms
from waterclock.client.encryption import Keys
from waterclock.client.producer.checks import as_bytes, checked_headers
from waterclock.client.results import Outcome, Receipt
from waterclock.model.errors import BadInput, NodeFailed
from waterclock.model.message import Message
from waterclock.model.protobuf import from_proto, to_proto
from waterclock.model.topics.topic_pending import TopicPending
from waterclock.model.views import CancelCount, Horizon, Recurrence, ScheduledMessage
from waterclock.v1 import broker_pb2, scheduler_pb2

Pending = bytes | Receipt | ScheduledMessage

_CANCELLED: dict[int, str] = {
    scheduler_pb2.OUTCOME_UNKNOWN: "unknown",
    scheduler_pb2.OUTCOME_DONE: "cancelled",
    scheduler_pb2.OUTCOME_ALREADY_FIRED: "already fired",
    # Before: perhaps by this very call, whose answer was lost.
    scheduler_pb2.OUTCOME_CANCELLED: "cancelled",
    scheduler_pb2.OUTCOME_EXPIRED: "expired",
}
_MOVED: dict[int, str] = {
    scheduler_pb2.OUTCOME_UNKNOWN: "unknown",
    scheduler_pb2.OUTCOME_DONE: "moved",
    scheduler_pb2.OUTCOME_ALREADY_FIRED: "already fired",
    scheduler_pb2.OUTCOME_CANCELLED: "cancelled",
    scheduler_pb2.OUTCOME_EXPIRED: "expired",
}


class SchedulerCalls:
    """The part of the client that looks after messages for later."""

    _connection: Calls

    async def cancel(self, topic: str, message: Pending, *, key: bytes | None = None) -> Outcome:
        """Cancel a pending message, or all of an id. Those "cancelled" are never delivered.

        With a key, only those of the id that have the key are meant. `reached` of the answer says
        how many there were.
        """
        return (await self.cancel_many(topic, [message], keys=None if key is None else [key]))[0]

    async def cancel_many(
        self, topic: str, messages: Sequence[Pending], *, keys: Sequence[bytes | None] | None = None
    ) -> list[Outcome]:
        """Cancel pending messages, each answered for itself."""
        request = scheduler_pb2.CancelRequest(topic=topic, pending=_pending(messages, keys))
        answer = await self._connection.call(self._connection.scheduler.Cancel, request)
        return _outcomes(_CANCELLED, answer, messages)

    async def reschedule(
        self, topic: str, message: Pending, at: When, *, key: bytes | None = None
    ) -> Outcome:
        """Give a pending message, or all of an id, another due time; a key as in `cancel`."""
        keys = None if key is None else [key]
        return (await self.reschedule_many(topic, [message], at, keys=keys))[0]

    async def reschedule_many(
        self,
        topic: str,
        messages: Sequence[Pending],
        at: When,
        *,
        keys: Sequence[bytes | None] | None = None,
    ) -> list[Outcome]:
        """Give pending messages another due time, the same for all."""
        request = scheduler_pb2.RescheduleRequest(
            topic=topic,
            pending=_pending(messages, keys),
            due_ms=[instant_ms(at, self._connection.now_ms())],
        )
        answer = await self._connection.call(self._connection.scheduler.Reschedule, request)
        return _outcomes(_MOVED, answer, messages)

    async def cancel_where(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        key_prefix: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        start: When | None = None,
        end: When | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> CancelCount:
        """Cancel the pending messages that match all that is given; `dry_run` only counts them."""
        found = self._filter(key, key_prefix, headers, start, end)
        request = scheduler_pb2.CancelWhereRequest(
            topic=topic, filter=found, all=everything, dry_run=dry_run
        )
        answer = await self._connection.call(self._connection.scheduler.CancelWhere, request)
        return from_proto(answer, CancelCount)

    async def scheduled(
        self,
        topic: str | None = None,
        *,
        key: bytes | None = None,
        key_prefix: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        start: When | None = None,
        end: When | None = None,
        with_values: bool = False,
        page_size: int = 0,
    ) -> AsyncIterator[ScheduledMessage]:
        """Yield the pending messages that match, the earliest due first, of one topic or of all
        that one may read."""
        request = scheduler_pb2.ListScheduledRequest(
            topic=topic or "",
            filter=self._filter(key, key_prefix, headers, start, end),
            limit=page_size,
            with_values=with_values,
        )
        while True:
            answer = await self._connection.call(self._connection.scheduler.ListScheduled, request)
            for each in answer.scheduled:
                yield from_proto(each, ScheduledMessage)
            if not answer.next_page:
                return
            request.page = answer.next_page

    async def count_scheduled(self, topic: str | None = None) -> list[Horizon]:
        """Return how many messages wait for how long, of one topic or of all that one may read."""
        request = scheduler_pb2.CountScheduledRequest(topic=topic or "")
        answer = await self._connection.call(self._connection.scheduler.CountScheduled, request)
        return [from_proto(each, Horizon) for each in answer.horizons]

    async def count_scheduled_by_topic(self) -> list[TopicPending]:
        """Return how many messages wait in each topic that one may read, and when the next one is
        due; topics without any are left out."""
        request = scheduler_pb2.CountScheduledRequest()
        answer = await self._connection.call(self._connection.scheduler.CountScheduled, request)
        return [from_proto(each, TopicPending) for each in answer.topics]

    async def repeat(
        self,
        name: str,
        topic: str,
        value: bytes | None,
        *,
        at: str | Rule | None = None,
        cron: str | Cron | None = None,
        every: timedelta | str | Every | None = None,
        zone: str | None = None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        jitter: timedelta | str | None = None,
        start: When | None = None,
        end: When | None = None,
        expires_after: timedelta | str | None = None,
    ) -> Recurrence:
        """Publish a message again and again; a recurrence of that name is replaced.

        Give one of `at` ("every day at 9:00", "0 9 * * MON", see `due.py`), `cron` and `every`. The
        occurrence that is next waits as a scheduled message. What clocks do to it is in
        docs/delivery.md.
        """
        now_ms = self._connection.now_ms()
        if at is not None:
            if cron is not None or every is not None:
                raise BadInput("repeat: give one of at, cron and every")
            cron, every = _of_rule(rule_of(at, now_ms, zone=zone or "UTC"))
            zone = None
        rule = _rule(cron, every, zone)
        value = None if value is None else as_bytes("value", value)
        key = None if key is None else as_bytes("key", key)
        keys = self._connection.keys
        wanted = Recurrence(
            name=name,
            topic=topic,
            message=Message(
                value if keys is None else keys.encrypt(topic, key, value),
                key=key,
                headers=None if headers is None else dict(checked_headers(headers)),
            ),
            cron=rule.text if isinstance(rule, Cron) else None,
            every_ms=rule.interval_ms if isinstance(rule, Every) else None,
            zone=rule.zone if isinstance(rule, Cron) else "UTC",
            jitter_ms=0 if jitter is None else span_ms(jitter),
            start_ms=None if start is None else instant_ms(start, now_ms, field="start"),
            end_ms=None if end is None else instant_ms(end, now_ms, field="end"),
            expires_after_ms=None if expires_after is None else span_ms(expires_after),
        )
        request = scheduler_pb2.PutRecurrenceRequest(
            recurrence=to_proto(wanted, scheduler_pb2.Recurrence)
        )
        answer = await self._connection.call(self._connection.scheduler.PutRecurrence, request)
        return from_proto(answer, Recurrence)

    async def recurrences(self, topic: str | None = None) -> list[Recurrence]:
        """Return what repeats, on one topic or on all."""
        request = scheduler_pb2.ListRecurrencesRequest(topic=topic or "")
        answer = await self._connection.call(self._connection.scheduler.ListRecurrences, request)
        return [from_proto(each, Recurrence) for each in answer.recurrences]

    async def stop_repeating(self, recurrence: str | Recurrence) -> bool:
        """Delete a recurrence; return whether there was one of that name."""
        request = scheduler_pb2.DeleteRecurrenceRequest(name=_name(recurrence))
        answer = await self._connection.call(self._connection.scheduler.DeleteRecurrence, request)
        return answer.existed

    async def pause_repeating(self, recurrence: str | Recurrence) -> Recurrence:
        """Keep a recurrence and let nothing of it come; what waits of it is cancelled."""
        request = scheduler_pb2.PauseRecurrenceRequest(name=_name(recurrence))
        answer = await self._connection.call(self._connection.scheduler.PauseRecurrence, request)
        return from_proto(answer, Recurrence)

    async def resume_repeating(self, recurrence: str | Recurrence) -> Recurrence:
        """Let a recurrence come again, from now on; what it missed is not made up for."""
        request = scheduler_pb2.ResumeRecurrenceRequest(name=_name(recurrence))
        answer = await self._connection.call(self._connection.scheduler.ResumeRecurrence, request)
        return from_proto(answer, Recurrence)

    def _filter(
        self,
        key: bytes | None,
        key_prefix: bytes | None,
        headers: Mapping[str, bytes] | None,
        start: When | None,
        end: When | None,
    ) -> scheduler_pb2.Filter:
        now_ms = self._connection.now_ms()
        return scheduler_pb2.Filter(
            key=key,
            key_prefix=key_prefix,
            headers=None if headers is None else dict(checked_headers(headers)),
            start_ms=0 if start is None else instant_ms(start, now_ms, field="start"),
            end_ms=0 if end is None else instant_ms(end, now_ms, field="end"),
        )


def recurrence_name(
    topic: str, rule: Rule, value: bytes | None, key: bytes | None, keys: Keys | None = None
) -> str:
    """Return a name for a recurrence nobody named: the same for the same, so that a program that
    runs twice does not repeat it twice."""
    text = repr((topic, rule, value, key)).encode()
    if keys is not None:  # the name is no secret, and would tell whether a value is a certain one
        text = keys.blinded(text)
    return f"{topic[:150]}-{hashlib.sha256(text).hexdigest()[:16]}"


def _of_rule(rule: Rule) -> tuple[Cron | None, Every | None]:
    return (rule, None) if isinstance(rule, Cron) else (None, rule)


def _rule(cron: str | Cron | None, every: timedelta | str | Every | None, zone: str | None) -> Rule:
    if (cron is None) is (every is None):
        raise BadInput("repeat: give one of at, cron and every")
    if cron is not None:
        checked = cron if isinstance(cron, Cron) else Cron(cron, zone or "UTC")
        if zone is not None and zone != checked.zone:
            raise BadInput(f"repeat: zone {zone!r} is not that of {cron}")
        return checked
    assert every is not None
    return every if isinstance(every, Every) else Every(every)


def _name(recurrence: str | Recurrence) -> str:
    return recurrence if isinstance(recurrence, str) else recurrence.name


def _pending(
    messages: Sequence[Pending], keys: Sequence[bytes | None] | None
) -> list[scheduler_pb2.Pending]:
    if keys is not None and len(keys) != len(messages):
        raise BadInput(f"keys: {len(keys)} for {len(messages)} messages")
    return [
        _named(message, None if keys is None else keys[at]) for at, message in enumerate(messages)
    ]


def _named(message: Pending, key: bytes | None) -> scheduler_pb2.Pending:
    if isinstance(message, Recurrence):
        raise BadInput(f"{message.name} repeats: end it with stop_repeating")
    if isinstance(message, Receipt | ScheduledMessage):
        position = broker_pb2.Position(partition=message.partition, offset=message.offset)
        return scheduler_pb2.Pending(position=position)
    return scheduler_pb2.Pending(message_id=as_bytes("message_id", message), key=key)


def _outcomes(
    outcomes: Mapping[int, str],
    answer: scheduler_pb2.CancelResponse | scheduler_pb2.RescheduleResponse,
    messages: Sequence[Pending],
) -> list[Outcome]:
    if not len(answer.outcomes) == len(answer.reached) == len(messages):
        raise NodeFailed(f"{len(answer.outcomes)} outcomes came for {len(messages)} messages")
    return [
        Outcome(outcomes[outcome], reached)
        for outcome, reached in zip(answer.outcomes, answer.reached, strict=True)
    ]
