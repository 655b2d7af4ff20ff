"""Looking after a node: topics, groups, dead letters, replays, runs of jobs, snapshots."""

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Literal

from waterclock.client.calls import Calls, DoneBefore
from waterclock.client.due import When, past_ms, span_ms
from waterclock.model.errors import AlreadyExists, BadInput, NotFound
from waterclock.model.protobuf import from_proto, to_proto
from waterclock.model.views import (
    DeadLetter,
    GroupInfo,
    JobRun,
    Position,
    ReplayInfo,
    SnapshotInfo,
    TopicInfo,
)
from waterclock.v1 import admin_pb2, broker_pb2

Span = timedelta | str
StartAt = Literal["earliest", "latest"] | When
"""Where a new group begins: the first message there is, the next to come, or a time. Delays count
backwards from now, as text with a minus: "-1h"."""


class Topics:
    """Create, change and look at topics."""

    def __init__(self, connection: Calls) -> None:
        self._connection = connection

    async def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Span | None = None,
        retention_bytes: int | None = None,
        retention_wait_for_groups: bool | None = None,
        is_compacted: bool | None = None,
        retries_max: int | None = None,
        ack_timeout: Span | None = None,
        replication_factor: int | None = None,
        if_absent: bool = False,
    ) -> TopicInfo:
        """Create a topic; what is not given is as the node's configuration says.

        With `if_absent` one that exists is returned as it is; otherwise that raises AlreadyExists.
        """
        request = admin_pb2.CreateTopicRequest(
            topic=name,
            settings=_settings(
                partitions=partitions,
                retention=retention,
                retention_bytes=retention_bytes,
                retention_wait_for_groups=retention_wait_for_groups,
                is_compacted=is_compacted,
                retries_max=retries_max,
                ack_timeout=ack_timeout,
                replication_factor=replication_factor,
            ),
            if_absent=if_absent,
        )
        create = self._connection.admin.CreateTopic
        try:
            return _topic(await self._connection.call(create, request, found=AlreadyExists))
        except DoneBefore:
            return await self.get(name)

    async def update(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Span | None = None,
        retention_bytes: int | None = None,
        retention_wait_for_groups: bool | None = None,
        is_compacted: bool | None = None,
        retries_max: int | None = None,
        ack_timeout: Span | None = None,
        replication_factor: int | None = None,
    ) -> TopicInfo:
        """Change what is given. A retention of zero keeps messages for ever.

        More partitions move keys: order is kept for messages published from then on. Another number
        of replicas is made after the answer, one at a time.
        """
        request = admin_pb2.UpdateTopicRequest(
            topic=name,
            settings=_settings(
                partitions=partitions,
                retention=retention,
                retention_bytes=retention_bytes,
                retention_wait_for_groups=retention_wait_for_groups,
                is_compacted=is_compacted,
                retries_max=retries_max,
                ack_timeout=ack_timeout,
                replication_factor=replication_factor,
            ),
        )
        return _topic(await self._connection.call(self._connection.admin.UpdateTopic, request))

    async def get(self, name: str) -> TopicInfo:
        """Return a topic; raises UnknownTopic."""
        request = admin_pb2.GetTopicRequest(topic=name)
        return _topic(await self._connection.call(self._connection.admin.GetTopic, request))

    async def list(self) -> list[TopicInfo]:
        answer = await self._connection.call(
            self._connection.admin.ListTopics, admin_pb2.ListTopicsRequest()
        )
        return [from_proto(each, TopicInfo) for each in answer.topics]

    async def delete(self, name: str) -> None:
        """Delete a topic and all its messages."""
        request = admin_pb2.DeleteTopicRequest(topic=name)
        with suppress(DoneBefore):
            await self._connection.call(self._connection.admin.DeleteTopic, request, found=NotFound)

    async def find_offsets(self, name: str, since: When) -> dict[int, int]:
        """Return the first offset appended at or after a time, by partition."""
        request = admin_pb2.FindOffsetsRequest(
            topic=name, time_ms=past_ms(since, self._connection.now_ms(), field="since")
        )
        answer = await self._connection.call(self._connection.admin.FindOffsets, request)
        return {each.partition: each.offset for each in answer.positions}


class Groups:
    """Look at groups, move them, delete them."""

    def __init__(self, connection: Calls) -> None:
        self._connection = connection

    async def list(self, topic: str | None = None) -> list[GroupInfo]:
        request = admin_pb2.ListGroupsRequest(topic=topic or "")
        answer = await self._connection.call(self._connection.admin.ListGroups, request)
        return [from_proto(each, GroupInfo) for each in answer.groups]

    async def get(self, topic: str, group: str) -> GroupInfo:
        """Return a group; raises NotFound."""
        request = admin_pb2.GetGroupRequest(topic=topic, group=group)
        return _group(await self._connection.call(self._connection.admin.GetGroup, request))

    async def delete(self, topic: str, group: str) -> None:
        """Forget a group and how far it has come."""
        request = admin_pb2.DeleteGroupRequest(topic=topic, group=group)
        with suppress(DoneBefore):
            await self._connection.call(self._connection.admin.DeleteGroup, request, found=NotFound)

    async def seek(self, topic: str, group: str, to: StartAt | Mapping[int, int]) -> GroupInfo:
        """Set where a group goes on: an end, a time, or offsets by partition. Raises Busy while it
        has members."""
        request = admin_pb2.SeekGroupRequest(topic=topic, group=group)
        if isinstance(to, Mapping):
            if not to:  # no positions at all would mean the beginning
                raise BadInput("to: names no partition")
            request.positions.extend(_position(*each) for each in to.items())
        else:
            request.start, request.start_ms = start_of(to, self._connection.now_ms())
        return _group(await self._connection.call(self._connection.admin.SeekGroup, request))


class DeadLetters:
    """Look at the messages that failed, publish them again, or let them go."""

    def __init__(self, connection: Calls) -> None:
        self._connection = connection

    async def list(self, topic: str, *, page_size: int = 0) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters of a topic (the origin's name)."""
        request = admin_pb2.ListDeadLettersRequest(topic=topic, limit=page_size)
        while True:
            answer = await self._connection.call(self._connection.admin.ListDeadLetters, request)
            for each in answer.dead_letters:
                yield from_proto(each, DeadLetter)
            if not answer.next_page:
                return
            request.page = answer.next_page

    async def count(self, topic: str) -> int:
        """Return how many there are."""
        request = admin_pb2.ListDeadLettersRequest(topic=topic, limit=1)
        answer = await self._connection.call(self._connection.admin.ListDeadLetters, request)
        return answer.total

    async def redrive(
        self,
        topic: str,
        dead_letters: Iterable[DeadLetter | Position] | None = None,
        *,
        limit: int = 0,
        value: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> int:
        """Publish dead letters again where they came from, all there are now unless some are
        named; return how many.

        One that is named alone is published with another `value`, or other `headers`, if they are
        given. Raises AlreadyExists if that was done before, and nobody knows whether it was the
        same: redrive it without them to have it off the list.
        """
        request = admin_pb2.RedriveRequest(topic=topic, limit=limit, value=value)
        if headers is not None:
            request.headers.headers.update(headers)
            request.headers.SetInParent()
        if dead_letters is not None:
            request.positions.extend(_positions(dead_letters))
            if not request.positions:
                return 0
        answer = await self._connection.call(self._connection.admin.Redrive, request)
        return answer.redriven

    async def purge(
        self, topic: str, dead_letters: Iterable[DeadLetter | Position] | None = None
    ) -> int:
        """Let dead letters go, all there are now unless some are named; return how many."""
        request = admin_pb2.PurgeDeadLettersRequest(topic=topic)
        if dead_letters is not None:
            request.positions.extend(_positions(dead_letters))
            if not request.positions:
                return 0
        answer = await self._connection.call(self._connection.admin.PurgeDeadLetters, request)
        return answer.purged


class Replays:
    """Look at named replays and delete them."""

    def __init__(self, connection: Calls) -> None:
        self._connection = connection

    async def list(self) -> list[ReplayInfo]:
        """Return the named replays that are not deleted."""
        request = admin_pb2.ListReplaysRequest()
        answer = await self._connection.call(self._connection.admin.ListReplays, request)
        return [from_proto(each, ReplayInfo) for each in answer.replays]

    async def delete(self, name: str) -> bool:
        """Forget a replay; return whether there was one of that name."""
        request = admin_pb2.DeleteReplayRequest(name=name)
        answer = await self._connection.call(self._connection.admin.DeleteReplay, request)
        return answer.existed


class JobRuns:
    """Look at the last runs of jobs; and for jobs, tell of one."""

    def __init__(self, connection: Calls) -> None:
        self._connection = connection

    async def list(self) -> list[JobRun]:
        """Return the last runs of topics that one may read, the newest first."""
        request = admin_pb2.ListJobRunsRequest()
        answer = await self._connection.call(self._connection.admin.ListJobRuns, request)
        return [from_proto(each, JobRun) for each in answer.runs]

    async def put(self, run: JobRun) -> JobRun:
        """Tell of a run, again and again while it goes on; return it as the node knows it, whose
        clock its times are of. A run that has ended stays as it is."""
        request = admin_pb2.PutJobRunRequest(run=to_proto(run, admin_pb2.JobRun))
        answer = await self._connection.call(self._connection.admin.PutJobRun, request)
        return from_proto(answer, JobRun)


class Snapshots:
    """Have snapshots, compacted copies of topics, used for compacted replays, or used no more.

    `waterclock pipeline compact` makes and registers them; see docs/formats/snapshot.md.
    """

    def __init__(self, connection: Calls) -> None:
        self._connection = connection

    async def register(self, topic: str, folder: str | os.PathLike[str]) -> SnapshotInfo:
        """Have a snapshot used for compacted replays. The folder, which has its manifest, is an
        absolute path on the node's own machine; its files stay where they are."""
        request = admin_pb2.RegisterSnapshotRequest(topic=topic, folder=os.fspath(folder))
        response = await self._connection.call(self._connection.admin.RegisterSnapshot, request)
        return from_proto(response, SnapshotInfo)

    async def list(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic, the one that reaches farthest first."""
        request = admin_pb2.ListSnapshotsRequest(topic=topic)
        answer = await self._connection.call(self._connection.admin.ListSnapshots, request)
        return [from_proto(each, SnapshotInfo) for each in answer.snapshots]

    async def delete(self, topic: str, name: str) -> bool:
        """Have a snapshot used no more; return whether there was one. Its files stay."""
        request = admin_pb2.DeleteSnapshotRequest(topic=topic, snapshot=name)
        answer = await self._connection.call(self._connection.admin.DeleteSnapshot, request)
        return answer.existed


def start_of(at: StartAt, now_ms: int) -> tuple[broker_pb2.Start.ValueType, int]:
    """Return where to start, as the wire has it."""
    if at == "earliest":
        return broker_pb2.START_EARLIEST, 0
    if at == "latest":
        return broker_pb2.START_LATEST, 0
    return broker_pb2.START_TIME, past_ms(at, now_ms, field="start")


def _settings(
    *,
    partitions: int | None,
    retention: Span | None,
    retention_bytes: int | None,
    retention_wait_for_groups: bool | None,
    is_compacted: bool | None,
    retries_max: int | None,
    ack_timeout: Span | None,
    replication_factor: int | None,
) -> admin_pb2.TopicSettings:
    try:
        return admin_pb2.TopicSettings(
            partitions=partitions,
            retention_ms=None if retention is None else span_ms(retention),
            retention_bytes=retention_bytes,
            retention_wait_for_groups=retention_wait_for_groups,
            is_compacted=is_compacted,
            retries_max=retries_max,
            ack_timeout_ms=None if ack_timeout is None else span_ms(ack_timeout),
            replication_factor=replication_factor,
        )
    except (TypeError, ValueError) as error:
        raise BadInput(f"topic settings: {error}") from error


def _topic(response: admin_pb2.Topic) -> TopicInfo:
    return from_proto(response, TopicInfo)


def _group(response: admin_pb2.Group) -> GroupInfo:
    return from_proto(response, GroupInfo)


def _positions(
    dead_letters: Iterable[DeadLetter | Position],
) -> list[broker_pb2.Position]:
    return [_position(each.partition, each.offset) for each in dead_letters]


def _position(partition: int, offset: int) -> broker_pb2.Position:
    return broker_pb2.Position(partition=partition, offset=offset)
