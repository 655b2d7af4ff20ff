"""Our requests as etcd's messages and back. Nothing here waits or decides."""

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from waterclock.cluster.coordinator.requests import (
    Delete,
    Event,
    Get,
    KeyRange,
    KeyValue,
    LeaseId,
    Operation,
    Put,
    Revision,
    Txn,
    Unchanged,
)
from waterclock.v1 import etcd_pb2 as pb

Asked = TypeVar("Asked", bound=Message)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Asked, Answer]):
    """A method of etcd's API."""

    path: str
    asked: type[Asked]
    answer: type[Answer]

    def codec(self) -> dict[str, Any]:
        """Return how gRPC is to write the request and to read the answer."""
        return {
            "request_serializer": self.asked.SerializeToString,
            "response_deserializer": self.answer.FromString,
        }


RANGE: Final = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE: Final = Method(
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse
)
KEEP_ALIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
AUTHENTICATE: Final = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse
)


def encode_range(keys: KeyRange) -> pb.RangeRequest:
    """Return the question for what a range holds."""
    return pb.RangeRequest(key=keys.start, range_end=keys.end)


def encode_txn(txn: Txn) -> pb.TxnRequest:
    """Return a transaction as etcd takes it."""
    return pb.TxnRequest(
        compare=[_condition(each) for each in txn.conditions],
        success=[_operation(each) for each in txn.success],
        failure=[_operation(each) for each in txn.failure],
    )


def encode_watch(keys: KeyRange, start_revision: int) -> pb.WatchRequest:
    """Return the request for all changes of a range from a revision on."""
    create = pb.WatchCreateRequest(
        key=keys.start, range_end=keys.end, start_revision=start_revision
    )
    return pb.WatchRequest(create_request=create)


def decode_items(answer: pb.RangeResponse) -> tuple[KeyValue, ...]:
    """Return the keys of an answer; etcd sorts them unless it is asked otherwise."""
    return tuple(_item(each) for each in answer.kvs)


def decode_reads(answer: pb.TxnResponse) -> tuple[tuple[KeyValue, ...], ...]:
    """Return what the `Get`s of a transaction read."""
    return tuple(
        decode_items(each.response_range)
        for each in answer.responses
        if each.HasField("response_range")
    )


def decode_events(answer: pb.WatchResponse) -> tuple[Event, ...]:
    """Return the changes of an answer; etcd never cuts a revision in two unless it is asked to."""
    return tuple(
        Event(
            Revision(each.kv.mod_revision),
            each.kv.key,
            None if each.type == pb.Event.DELETE else _item(each.kv),
        )
        for each in answer.events
    )


def _condition(each: Unchanged) -> pb.Compare:
    return pb.Compare(
        result=pb.Compare.EQUAL,
        target=pb.Compare.MOD,
        key=each.key,
        mod_revision=each.mod_revision,
    )


def _operation(each: Operation) -> pb.RequestOp:
    match each:
        case Put(key, value, lease):
            return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))
        case Delete(keys):
            asked = pb.DeleteRangeRequest(key=keys.start, range_end=keys.end)
            return pb.RequestOp(request_delete_range=asked)
        case Get(keys):
            return pb.RequestOp(request_range=encode_range(keys))


def _item(each: pb.KeyValue) -> KeyValue:
    return KeyValue(
        each.key,
        each.value,
        Revision(each.create_revision),
        Revision(each.mod_revision),
        each.version,
        LeaseId(each.lease),
    )
