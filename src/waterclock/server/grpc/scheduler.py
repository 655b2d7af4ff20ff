"""Cancel, Reschedule, CancelWhere, ListScheduled, CountScheduled, ListTimes, and recurrences."""

from collections.abc import Callable, Iterable

from msgspec import structs

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.protobuf import from_proto, to_proto
from waterclock.model.views import Recurrence
from waterclock.node.node import Node
from waterclock.node.schedule.named_changes import NAMED_MAX, Named
from waterclock.node.schedule.pending import Steps
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.recurrence_records import TIMES_DEFAULT, times_of
from waterclock.server.access import CALLER
from waterclock.server.grpc.fields import check_not_negative
from waterclock.v1 import scheduler_pb2 as pb

PARTITIONS_MAX = 10_000
"""Most partitions a filter may name."""


class SchedulerApi:
    """The methods of `waterclock.v1.Scheduler`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def cancel(self, request: pb.CancelRequest) -> pb.CancelResponse:
        changed = await self._node.pending.cancel(request.topic, _named(request.pending))
        return pb.CancelResponse(
            outcomes=changed.outcomes.tolist(), reached=changed.reached.tolist()
        )

    async def reschedule(self, request: pb.RescheduleRequest) -> pb.RescheduleResponse:
        """Give pending messages new due times."""
        if not request.due_ms:
            raise BadInput("due_ms: give one, or one for each")
        changed = await self._node.pending.reschedule(
            request.topic, _named(request.pending), request.due_ms
        )
        return pb.RescheduleResponse(
            outcomes=changed.outcomes.tolist(), reached=changed.reached.tolist()
        )

    async def cancel_where(self, request: pb.CancelWhereRequest) -> pb.CancelWhereResponse:
        """Cancel all pending messages that match."""
        wanted = _filter(request.filter)
        if wanted.is_empty and not request.all:
            raise BadInput("filter: an empty one cancels everything; say so with `all`")
        done = await self._node.pending.cancel_where(request.topic, wanted, dry_run=request.dry_run)
        return to_proto(done, pb.CancelWhereResponse)

    async def list_scheduled(self, request: pb.ListScheduledRequest) -> pb.ListScheduledResponse:
        """List pending messages by due time, of a topic or of all that one may read."""
        check_not_negative(limit=request.limit)
        wanted, pending = _filter(request.filter), self._node.pending
        limit, with_values = request.limit, request.with_values
        if request.topic:
            page = await pending.list(
                request.topic, wanted, limit=limit, page=request.page, with_values=with_values
            )
        elif wanted.partitions:
            raise BadInput("filter.partitions: are of a topic: name it")
        else:
            page = await pending.list_all(
                _may_read(), wanted, limit=limit, page=request.page, with_values=with_values
            )
        scheduled = [to_proto(each, pb.ScheduledMessage) for each in page.scheduled]
        return pb.ListScheduledResponse(scheduled=scheduled, next_page=page.next_page)

    async def count_scheduled(self, request: pb.CountScheduledRequest) -> pb.CountScheduledResponse:
        """Count pending messages by how soon they are due; those of all topics also by topic."""
        check_not_negative(steps=request.steps)
        steps = Steps(request.start_ms, request.step_ms, request.steps) if request.steps else None
        pending = self._node.pending
        if request.topic:
            found, topics = await pending.count(request.topic, steps), []
        else:
            everything = await pending.count_all(_may_read(), steps)
            found = everything.by_due
            topics = [to_proto(each, pb.CountScheduledResponse.Topic) for each in everything.topics]
        horizons = [to_proto(each, pb.CountScheduledResponse.Horizon) for each in found.horizons]
        return pb.CountScheduledResponse(
            horizons=horizons, total=found.total, counts=found.counts, topics=topics
        )

    # Recurrences

    async def list_times(self, request: pb.ListTimesRequest) -> pb.ListTimesResponse:
        """Say when a rule would let a message come."""
        check_not_negative(start_ms=request.start_ms, count=request.count)
        times = times_of(
            cron=request.cron if request.HasField("cron") else None,
            every_ms=request.every_ms if request.HasField("every_ms") else None,
            zone=request.zone or "UTC",
            start_ms=request.start_ms or self._node.clock.now_ms(),
            count=request.count or TIMES_DEFAULT,
        )
        return pb.ListTimesResponse(times_ms=times)

    async def put_recurrence(self, request: pb.PutRecurrenceRequest) -> pb.Recurrence:
        """Create a recurrence or replace the one of that name."""
        # Nothing else has run since the caller's rights were checked.
        recurrences, asked = self._node.recurrences, _recurrence(request.recurrence)
        put = await recurrences.put(asked, seen_topic=recurrences.topic_of(asked.name))
        return to_proto(put, pb.Recurrence)

    async def delete_recurrence(
        self, request: pb.DeleteRecurrenceRequest
    ) -> pb.DeleteRecurrenceResponse:
        recurrences = self._node.recurrences
        seen_topic = recurrences.topic_of(request.name)
        existed = await recurrences.delete(request.name, seen_topic=seen_topic)
        return pb.DeleteRecurrenceResponse(existed=existed)

    async def pause_recurrence(self, request: pb.PauseRecurrenceRequest) -> pb.Recurrence:
        """Keep a recurrence, and let nothing of it come."""
        return await self._set_paused(request.name, is_paused=True)

    async def resume_recurrence(self, request: pb.ResumeRecurrenceRequest) -> pb.Recurrence:
        """Let a recurrence come again, from now on."""
        return await self._set_paused(request.name, is_paused=False)

    async def _set_paused(self, name: str, *, is_paused: bool) -> pb.Recurrence:
        recurrences = self._node.recurrences
        seen_topic = recurrences.topic_of(name)
        found = await recurrences.set_paused(name, is_paused=is_paused, seen_topic=seen_topic)
        return to_proto(found, pb.Recurrence)

    async def list_recurrences(
        self, request: pb.ListRecurrencesRequest
    ) -> pb.ListRecurrencesResponse:
        found = self._node.recurrences.list(request.topic)
        recurrences = [to_proto(each, pb.Recurrence) for each in found]
        return pb.ListRecurrencesResponse(recurrences=recurrences)


def _may_read() -> Callable[[str], bool]:
    """Return what says if who asks may read a topic."""
    rights = CALLER.get().rights
    return lambda topic: rights.allows("read", topic=topic)


def _named(pending: Iterable[pb.Pending]) -> list[Named]:
    named = list(pending)
    if len(named) > NAMED_MAX:
        raise LimitExceeded("pending messages named", NAMED_MAX, got=len(named))
    return [_name(one) for one in named]


def _name(pending: pb.Pending) -> Named:
    key = pending.key if pending.HasField("key") else None
    if not pending.HasField("position"):
        return Named(pending.message_id, key)
    position = pending.position
    check_not_negative(partition=position.partition, offset=position.offset)
    return Named(pending.message_id, key, (position.partition, position.offset))


def _filter(wanted: pb.Filter) -> Filter:
    check_not_negative(start_ms=wanted.start_ms, end_ms=wanted.end_ms)
    if len(wanted.partitions) > PARTITIONS_MAX:
        raise LimitExceeded("filter.partitions", PARTITIONS_MAX, got=len(wanted.partitions))
    return Filter(
        key=wanted.key if wanted.HasField("key") else None,
        key_prefix=wanted.key_prefix if wanted.HasField("key_prefix") else None,
        headers=dict(wanted.headers),
        start_ms=wanted.start_ms,
        end_ms=wanted.end_ms,
        partitions=tuple(wanted.partitions),
    )


def _recurrence(given: pb.Recurrence) -> Recurrence:
    if given.message.message_id or given.message.HasField("due_ms"):
        raise BadInput("message: each occurrence gets an id and a due time of its own")
    check_not_negative(jitter_ms=given.jitter_ms, start_ms=given.start_ms, end_ms=given.end_ms)
    # What the node finds out is not the caller's to say.
    return structs.replace(
        from_proto(given, Recurrence), zone=given.zone or "UTC", next_ms=0, made_partitions=0
    )
