"""Whatever a client sends is answered with a code that says whose fault it is, and does no harm.

Requests of every method that takes one are made at random from their descriptors: extreme numbers,
names nobody may have, bytes that are no batch. None may end as INTERNAL or UNKNOWN, which are bugs.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from grpc.aio import AioRpcError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.served import arrow_of, failure, running_server
from waterclock.model.message import Message
from waterclock.v1 import admin_pb2, backup_pb2, broker_pb2, scheduler_pb2, write_registry_pb2

SERVICES = [
    service
    for module in (admin_pb2, backup_pb2, broker_pb2, write_registry_pb2, scheduler_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
UNARY = [
    method for service in SERVICES for method in service.methods if not method.client_streaming
]
STREAMS = [
    method
    for service in SERVICES
    for method in service.methods
    if method.client_streaming or method.server_streaming
]
EXAMPLES = int(os.environ.get("WATERCLOCK_HOSTILE", "2"))
BUGS = (StatusCode.INTERNAL, StatusCode.UNKNOWN)

INT64 = st.one_of(
    st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63), 1_700_000_000_000]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 5),
)
INT32 = INT64.filter(lambda n: -(2**31) <= n < 2**31)
TEXT = st.one_of(
    st.sampled_from(["", "orders", "g", "__x", "../x", "é", "a/b", "x" * 201, "orders.dlq", "UTC"]),
    st.sampled_from(["* * * * *", "0 0 31 2 *", "99 * * * *", "0:5", "AAAA"]),
    st.text(max_size=20),
)
BYTES = st.one_of(
    st.sampled_from([b"", b"id-a", arrow_of(Message(b"v", message_id=b"id-a"))]),
    st.binary(max_size=64),
)
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_INT64: INT64,
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_ENUM: st.integers(-1, 9),
}
# A long wait is not hostile, only long.
TAME = {"wait_ms": st.sampled_from([0, 1, -1, 60_001]), "dry_run": st.booleans()}


def values_of(field: Any) -> st.SearchStrategy[Any]:
    if field.name in TAME:
        return TAME[field.name]
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if field.message_type.GetOptions().map_entry:
            return st.dictionaries(TEXT, BYTES, max_size=3)
        one = messages_of(field.message_type)
    else:
        one = SCALARS[field.type]
    return st.lists(one, max_size=4) if field.is_repeated else one


def messages_of(descriptor: Any) -> st.SearchStrategy[Any]:
    """Make messages of a type, any of whose fields may be absent."""
    kind = GetMessageClass(descriptor)
    fields = {field.name: values_of(field) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: kind(**given))


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


@pytest.mark.parametrize("method", UNARY, ids=lambda method: method.name)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_no_request_is_answered_with_a_bug(tmp_path_factory, method, data):
    # Many to one node: starting it takes longer than asking it.
    requests = data.draw(st.lists(messages_of(method.input_type), min_size=30, max_size=60))
    folder: Path = tmp_path_factory.mktemp("node")

    async with running_server(folder) as it:
        await it.publish(b"a")
        channel = it.channel
        kind: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
        call = kind(
            path_of(method),
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        for request in requests:
            answer = call(request)
            if method.server_streaming:
                with suppress(AioRpcError):
                    assert [each async for each in answer]
            assert await answer.code() not in BUGS, (request, await answer.details())
        assert (await it.publish(b"still there", topic="other")).count == 1


@pytest.mark.parametrize(
    "method",
    [method for method in UNARY if method not in STREAMS],
    ids=lambda method: method.name,
)
async def test_bytes_that_are_no_message_are_the_clients_fault(tmp_path, method, caplog):
    async with running_server(tmp_path) as it:
        call: Any = it.channel.unary_unary(path_of(method))
        code, details, _ = await failure(call(b"\xff\xff"))

        assert code == StatusCode.INVALID_ARGUMENT
        assert details == "the request is not a message of this method"
    assert caplog.text == ""


@pytest.mark.parametrize("method", STREAMS, ids=lambda method: method.name)
async def test_bytes_that_are_no_message_end_a_stream(tmp_path, method, caplog):
    async with running_server(tmp_path) as it:
        call: Any = it.channel.stream_stream(path_of(method))()
        await call.write(b"\xff\xff")

        assert await call.code() == StatusCode.INVALID_ARGUMENT
    assert caplog.text == ""
