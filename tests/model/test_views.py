"""Every view goes to protobuf and comes back the same, and its JSON has the names of the wire."""

from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model import views
from waterclock.model.message import Message
from waterclock.model.protobuf import from_proto, to_proto
from waterclock.v1 import admin_pb2, broker_pb2, scheduler_pb2, write_registry_pb2

CARRIERS: dict[type, Any] = {
    views.Position: broker_pb2.Position,
    views.TopicSettings: admin_pb2.TopicSettings,
    views.PartitionInfo: admin_pb2.Topic.Partition,
    views.TopicInfo: admin_pb2.Topic,
    views.GroupPartitionInfo: admin_pb2.Group.Partition,
    views.GroupInfo: admin_pb2.Group,
    views.ScheduledMessage: scheduler_pb2.ScheduledMessage,
    views.DeadLetter: admin_pb2.DeadLetter,
    views.CancelCount: scheduler_pb2.CancelWhereResponse,
    views.Horizon: scheduler_pb2.CountScheduledResponse.Horizon,
    views.Recurrence: scheduler_pb2.Recurrence,
    views.ReplayInfo: admin_pb2.ReplayInfo,
    views.SnapshotPartitionInfo: admin_pb2.Snapshot.Partition,
    views.SnapshotInfo: admin_pb2.Snapshot,
    views.JobRun: admin_pb2.JobRun,
    views.WriteBegun: write_registry_pb2.BeginWriteResponse,
    views.WriterInfo: write_registry_pb2.Writer,
    views.RequestLimits: admin_pb2.NodeInfo.Limits,
    views.NodeAddress: admin_pb2.NodeAddress,
    views.NodeInfo: admin_pb2.NodeInfo,
}

OVER_HTTP_ONLY = {views.StreamInfo}

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    NoneType: st.none(),
    bool: st.booleans(),
    int: st.integers(-(1 << 31), (1 << 31) - 1),
    str: TEXTS,
    float: st.floats(0, 1),
    views.WriteState: st.sampled_from(views.WriteState),
    Message: st.builds(
        Message,
        st.none() | st.binary(),
        key=st.none() | st.binary(),
        message_id=st.none() | st.binary(min_size=1),
        headers=st.none() | st.dictionaries(TEXTS, st.binary(), min_size=1),
        due_ms=st.none() | st.integers(0, (1 << 63) - 1),
    ),
}


def instances(hint: Any) -> st.SearchStrategy[Any]:
    """Return what may stand in a field of this type."""
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if get_origin(hint) is UnionType:
        return st.one_of(*map(instances, get_args(hint)))
    if get_origin(hint) in (tuple, list):
        return st.lists(instances(get_args(hint)[0]), max_size=3).map(get_origin(hint))
    if get_origin(hint) is dict:
        return st.dictionaries(*map(instances, get_args(hint)), max_size=3)
    hints = get_type_hints(hint)
    built = st.builds(hint, **{name: instances(hints[name]) for name in hint.__struct_fields__})
    return built.map(_by_one_rule) if hint is views.Recurrence else built


def _by_one_rule(drawn: views.Recurrence) -> views.Recurrence:
    return drawn if drawn.cron is None else msgspec.structs.replace(drawn, every_ms=None)


def test_every_view_that_grpc_carries_is_here():
    shown = {
        kind
        for kind in vars(views).values()
        if isinstance(kind, type) and issubclass(kind, views.View)
    }

    assert shown - {views.View, views._MessageView, *OVER_HTTP_ONLY} == {*CARRIERS}


@pytest.mark.parametrize("kind", CARRIERS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_view_comes_back_from_protobuf_as_it_was(kind: type, data: st.DataObject):
    view = data.draw(instances(kind))

    message = to_proto(view, CARRIERS[kind])

    assert from_proto(message.FromString(message.SerializeToString()), kind) == view


@pytest.mark.parametrize(
    "kind", [views.TopicInfo, views.GroupInfo, views.NodeInfo, *sorted(OVER_HTTP_ONLY, key=str)]
)
@given(data=st.data())
def test_a_view_comes_back_from_json_as_it_was(kind: type, data: st.DataObject):
    view = data.draw(instances(kind))

    assert msgspec.json.decode(msgspec.json.encode(view), type=kind) == view


def test_settings_that_are_as_configured_are_left_out_of_json():
    settings = views.TopicSettings(retention_ms=0)

    assert msgspec.to_builtins(settings) == {
        "partitions": 1,
        "retentionMs": 0,
        "isCompacted": False,
    }
