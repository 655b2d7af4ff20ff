"""Topics, groups, dead letters, replays and the node: for administrators."""

from collections.abc import Iterable
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from waterclock.model.cluster_views import PlacementView
from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.protobuf import from_proto, to_proto
from waterclock.model.topics.effective_settings import effective_settings
from waterclock.model.views import GroupInfo, JobRun, TopicSettings
from waterclock.node.dead_letters.redrive import edit_of
from waterclock.node.groups.positions import POSITIONS_MAX, Start
from waterclock.node.node import Node
from waterclock.node.topics import Topic
from waterclock.server.cluster.single_node import orders_of
from waterclock.server.console.histories import Histories
from waterclock.server.console.models import HistoryParameters
from waterclock.server.grpc.fields import check_not_negative, member_of
from waterclock.v1 import admin_pb2 as pb
from waterclock.v1 import broker_pb2 as broker

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster


class AdminApi:
    """The methods of `waterclock.v1.Admin`."""

    def __init__(self, node: Node, *, http_address: str, cluster: "Cluster | None" = None) -> None:
        self._node = node
        self._http_address = http_address
        self._cluster = cluster
        self._histories = Histories(node, cluster)
        self._data_folder = str(Path(node.config.node.data_folder).absolute())

    # Topics

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.Topic:
        topics = self._node.topics
        settings = _changed(topics.default_settings(), request.settings)
        made = await topics.create(request.topic, settings, if_absent=request.if_absent)
        return self._topic(made)

    async def update_topic(self, request: pb.UpdateTopicRequest) -> pb.Topic:
        """Give a topic other settings, or more partitions."""
        topics = self._node.topics
        settings = _changed(topics.get(request.topic).settings, request.settings)
        return self._topic(await topics.update(request.topic, settings))

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        await self._node.topics.delete(request.topic)
        return pb.DeleteTopicResponse()

    async def get_topic(self, request: pb.GetTopicRequest) -> pb.Topic:
        return self._topic(self._node.topics.get(request.topic))

    def _topic(self, topic: Topic) -> pb.Topic:
        """Return a topic with what holds for it."""
        return to_proto(topic.view(effective_settings(topic.settings, self._node.config)), pb.Topic)

    async def list_topics(self, _: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        return pb.ListTopicsResponse(topics=map(_listed, self._node.topics.all()))

    async def find_offsets(self, request: pb.FindOffsetsRequest) -> pb.FindOffsetsResponse:
        """Return where each partition stood at a time."""
        check_not_negative(time_ms=request.time_ms)
        positions = self._node.topics.get(request.topic).positions_at(request.time_ms)
        return pb.FindOffsetsResponse(
            positions=[to_proto(each, broker.Position) for each in positions]
        )

    # Groups

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        """Return all groups, or those of a topic."""
        if request.topic:
            self._node.topics.get(request.topic)
        return pb.ListGroupsResponse(groups=map(_group, self._node.groups.list(request.topic)))

    async def get_group(self, request: pb.GetGroupRequest) -> pb.Group:
        return _group(self._node.groups.get(request.topic, request.group))

    async def delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        """Forget a group and its progress."""
        await self._node.groups.delete(request.topic, request.group)
        return pb.DeleteGroupResponse()

    async def seek_group(self, request: pb.SeekGroupRequest) -> pb.Group:
        """Set where a group goes on."""
        check_not_negative(start_ms=request.start_ms)
        view = await self._node.groups.seek(
            request.topic,
            request.group,
            start=Start(member_of(broker.Start, "start", request.start)),
            start_ms=request.start_ms,
            positions=dict(_positions(request.positions)),
        )
        return _group(view)

    # Dead letters

    async def list_dead_letters(
        self, request: pb.ListDeadLettersRequest
    ) -> pb.ListDeadLettersResponse:
        check_not_negative(limit=request.limit)
        page = await self._node.dead_letters.list(
            request.topic, limit=request.limit, page=request.page
        )
        return pb.ListDeadLettersResponse(
            dead_letters=[to_proto(each, pb.DeadLetter) for each in page.dead_letters],
            next_page=page.next_page,
            total=page.total,
        )

    async def redrive(self, request: pb.RedriveRequest) -> pb.RedriveResponse:
        """Publish dead letters again where they came from."""
        check_not_negative(limit=request.limit)
        edit = edit_of(
            request.value if request.HasField("value") else None,
            request.headers.headers if request.HasField("headers") else None,
            self._node.config.limits,
        )
        redriven = await self._node.dead_letters.redrive(
            request.topic, _positions(request.positions) or None, limit=request.limit, edit=edit
        )
        return pb.RedriveResponse(redriven=redriven)

    async def purge_dead_letters(
        self, request: pb.PurgeDeadLettersRequest
    ) -> pb.PurgeDeadLettersResponse:
        """Take dead letters off the list."""
        purged = await self._node.dead_letters.purge(
            request.topic, _positions(request.positions) or None
        )
        return pb.PurgeDeadLettersResponse(purged=purged)

    # Replays

    async def list_replays(self, _: pb.ListReplaysRequest) -> pb.ListReplaysResponse:
        replays = self._node.replays.list()
        return pb.ListReplaysResponse(replays=[to_proto(each, pb.ReplayInfo) for each in replays])

    async def delete_replay(self, request: pb.DeleteReplayRequest) -> pb.DeleteReplayResponse:
        return pb.DeleteReplayResponse(existed=await self._node.replays.delete(request.name))

    # Jobs

    async def put_job_run(self, request: pb.PutJobRunRequest) -> pb.JobRun:
        """Note what a run of a job tells of itself."""
        given = from_proto(request.run, JobRun)
        run = await self._node.job_runs.put(given)
        return to_proto(run, pb.JobRun)

    async def list_job_runs(self, _: pb.ListJobRunsRequest) -> pb.ListJobRunsResponse:
        runs = self._node.job_runs.list()
        return pb.ListJobRunsResponse(runs=[to_proto(each, pb.JobRun) for each in runs])

    # Snapshots

    async def register_snapshot(self, request: pb.RegisterSnapshotRequest) -> pb.Snapshot:
        """Have a compacted copy of a topic used for compacted replays."""
        made = await self._node.snapshots.register(request.topic, request.folder)
        return to_proto(made, pb.Snapshot)

    async def list_snapshots(self, request: pb.ListSnapshotsRequest) -> pb.ListSnapshotsResponse:
        """Return the snapshots of a topic, the one in use first."""
        found = self._node.snapshots.list(request.topic)
        return pb.ListSnapshotsResponse(snapshots=[to_proto(each, pb.Snapshot) for each in found])

    async def delete_snapshot(self, request: pb.DeleteSnapshotRequest) -> pb.DeleteSnapshotResponse:
        """Use a snapshot no more."""
        existed = await self._node.snapshots.delete(request.topic, request.snapshot)
        return pb.DeleteSnapshotResponse(existed=existed)

    # The node

    async def get_node(self, _: pb.GetNodeRequest) -> pb.NodeInfo:
        """Return the node's name, version, addresses and limits, and the nodes beside it."""
        membership = None if self._cluster is None else self._cluster.membership
        view = structs.replace(
            self._node.view(),
            data_folder=self._data_folder,
            http_address=self._http_address,
            nodes=() if membership is None else membership.addresses(),
        )
        return to_proto(view, pb.NodeInfo)

    async def get_history(self, request: pb.GetHistoryRequest) -> pb.History:
        """Return what nodes, or a topic, did over the last hour or day."""
        if request.range not in ("", "hour", "day"):
            raise BadInput("range must be hour or day")
        asked = HistoryParameters(
            range="day" if request.range == "day" else "hour",
            topic=request.topic or None,
            node=request.node,
        )
        found = await self._histories.get(asked)
        series = {
            name: pb.History.Series(values=[nan if each is None else each for each in values])
            for name, values in found.series.items()
        }
        return pb.History(
            step_ms=found.step_ms,
            end_ms=found.end_ms,
            series=series,
            unreachable=found.unreachable,
        )

    # Places of replicas

    async def get_placement(self, _: pb.GetPlacementRequest) -> pb.Placement:
        """Return what people want moved."""
        orders = None if self._cluster is None else self._cluster.orders
        return to_proto(PlacementView() if orders is None else orders.placement(), pb.Placement)

    async def drain_node(self, request: pb.DrainNodeRequest) -> pb.Placement:
        """Have a node lead and keep nothing, or let it again."""
        orders = orders_of(self._cluster)
        work = orders.undrain if request.undo else orders.drain
        return to_proto(await work(request.node), pb.Placement)

    async def replace_node(self, request: pb.ReplaceNodeRequest) -> pb.Placement:
        """Have the replicas of a node made anew on another."""
        view = await orders_of(self._cluster).replace(request.node, request.target)
        return to_proto(view, pb.Placement)

    async def move_partition(self, request: pb.MovePartitionRequest) -> pb.Placement:
        """Have a replica, or the leader, elsewhere, or go no further with that."""
        orders = orders_of(self._cluster)
        if request.undo:
            view = await orders.undo_move(request.topic, request.partition)
        else:
            view = await orders.move(
                request.topic,
                request.partition,
                target=request.target,
                source=request.source,
                is_leader_only=request.is_leader_only,
            )
        return to_proto(view, pb.Placement)


def _changed(settings: TopicSettings, given: pb.TopicSettings) -> TopicSettings:
    """Return settings with what a request gives."""
    changes = {field.name: value for field, value in given.ListFields()}
    return structs.replace(settings, **changes)


def _listed(topic: Topic) -> pb.Topic:
    return to_proto(topic.view(), pb.Topic)


def _group(view: GroupInfo) -> pb.Group:
    return to_proto(view, pb.Group)


def _positions(given: Iterable[broker.Position]) -> list[tuple[int, int]]:
    positions = [(position.partition, position.offset) for position in given]
    if len(positions) > POSITIONS_MAX:
        raise LimitExceeded("positions", POSITIONS_MAX, got=len(positions))
    if any(partition < 0 or offset < 0 for partition, offset in positions):
        raise BadInput("positions: partitions and offsets must not be negative")
    return positions
