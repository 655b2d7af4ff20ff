"""Requests that nobody should send, made from the descriptors of the API.

Any field may be absent, extreme or absurd; names that mean something to a node (topics, pages, cron
rules, Arrow bytes) are drawn from what comes near to being right, for what is wholly wrong is
refused at the door.
"""

import base64
import os
import struct
import time
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from waterclock.log.schema import MESSAGES, encode, from_messages
from waterclock.model.message import Message
from waterclock.v1 import admin_pb2, broker_pb2, scheduler_pb2, write_registry_pb2

SERVICES = (
    broker_pb2.DESCRIPTOR.services_by_name["Broker"],
    scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"],
    admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    write_registry_pb2.DESCRIPTOR.services_by_name["WriteRegistry"],
)
METHODS: dict[str, MethodDescriptor] = {
    method.full_name: method for service in SERVICES for method in service.methods
}

EXAMPLES = int(os.environ.get("WATERCLOCK_FUZZ", "0")) or 12
"""How many of each kind: `make fuzz` asks for more."""
hostile = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

TOPICS = ("hostile", "hostile", "hostile-2", "hostile.dlq", "lonely", "nobody-has-this")
BAD_NAMES = (
    "",
    ".",
    "..",
    "../../etc/passwd",
    "a/b",
    "__meta",
    "nul\0byte",
    "ümläut",
    "\U0001f4a3",
    "-dash",
    "a b",
    "wc-\n\r",
    "\u202eright to left",
)
# Made late, so that nobody prints them.
LONG_NAMES = st.sampled_from([200, 201, 5_000, 100_000]).map(lambda size: "x" * size)
NAMES = st.sampled_from(TOPICS) | st.sampled_from(BAD_NAMES) | LONG_NAMES | st.text(max_size=20)
PAGES = (
    st.sampled_from(["", "0:0", "1:5", ":", "9" * 50, "99999:99999999999999999", "-1:-1", "٣:٤"])
    | st.binary(max_size=40).map(lambda raw: base64.urlsafe_b64encode(raw).decode())
    | st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(-(2**63), 2**63 - 1),
    ).map(lambda place: base64.urlsafe_b64encode(struct.pack("<qiq", *place)).decode())
    | st.text(max_size=30)
)
CRONS = (
    st.sampled_from(
        [
            "* * * * *",
            "*/5 * * * * *",
            "0 0 31 2 *",
            "0 0 29 2 1",
            "*/0 * * * *",
            "60 * * * *",
            "1-0 * * * *",
            "* * * *",
            "* * * * * * *",
            "@daily",
            "@never",
            "a b c d e",
            "",
            " ",
            ",".join(map(str, range(60))) + " * * * *",
            "0-59/1,0-59/1 * * * *",
            "-1 * * * *",
            "٣ * * * *",
            "\0 * * * *",
        ]
    )
    | st.text(alphabet="0123456789*/,- LW#?", max_size=20)
    | LONG_NAMES
)
ZONES = (
    st.sampled_from(
        [
            "",
            "UTC",
            "Europe/Berlin",
            "America/St_Johns",
            "Nowhere/City",
            "../../etc/passwd",
            "/etc/localtime",
            "Europe",
            "posixrules",
            "\0",
            "Factory",
            "tzdata.zi",
        ]
    )
    | LONG_NAMES
)
INT64S = (
    st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**53, 2**62, 2**63 - 1, -(2**63)])
    | st.integers(-5, 1_000)
    | st.integers(-(2**63), 2**63 - 1)
)
INT32S = (
    st.sampled_from([0, 1, 2, -1, 1_024, 1_025, 2**31 - 1, -(2**31)])
    | st.integers(-3, 10)
    | st.integers(-(2**31), 2**31 - 1)
)
BYTES = (
    st.binary(max_size=40)
    | st.sampled_from([b"", b"\0", b"\xff\xfe", b"id-1", b"id-2", b"hostile/0@1"])
    | st.sampled_from([255, 256, 65_537, 1_000_000]).map(bytes)
)


@st.composite
def times(draw: st.DrawFn) -> int:
    """Return a time in ms: near now, or absurd."""
    near = st.integers(-10_000, 10_000).map(lambda away: time.time_ns() // 1_000_000 + away)
    return draw(near | INT64S)


# Arrow


def valid_arrow(count: int, *, due_ms: int | None = None, compression: Any = "none") -> bytes:
    """Return a batch as producers send it."""
    made = [
        Message(b"value-%d" % i, key=None, message_id=b"id-%d" % i, due_ms=due_ms)  # type: ignore[arg-type]
        for i in range(count)
    ]
    return bytes(encode(from_messages(made), compression))


def _foreign_arrow(kind: int) -> bytes:
    """Return a record batch of another schema, or a whole stream."""
    batches = [
        pa.record_batch({"x": pa.array([1, 2, 3])}),
        pa.record_batch({"message_id": pa.array([b"a", None])}),
        pa.record_batch({name: pa.array([b"a"]) for name in MESSAGES.names}),
    ]
    if kind < len(batches):
        return bytes(batches[kind].serialize())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, MESSAGES) as writer:
        writer.write_batch(from_messages([Message(b"v", message_id=b"i")]))
    return bytes(sink.getvalue())


def bomb(size: int) -> bytes:
    """Return a small batch that inflates to many bytes."""
    return bytes(encode(from_messages([Message(bytes(size), message_id=b"bomb")]), "zstd"))


@st.composite
def arrows(draw: st.DrawFn) -> bytes:
    """Return Arrow bytes: right, nearly right, or not at all."""
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return draw(st.binary(max_size=200))
    if kind == 1:
        return _foreign_arrow(draw(st.integers(0, 3)))
    how = draw(st.sampled_from(["none", "lz4", "zstd"]))
    raw = bytearray(
        valid_arrow(draw(st.integers(0, 20)), due_ms=draw(st.none() | times()), compression=how)
    )
    if kind == 2:
        return bytes(raw)
    if kind == 3:
        return bytes(raw[: draw(st.integers(0, len(raw)))])
    if kind == 4:
        return bytes(raw) + draw(st.binary(max_size=16))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        if kind == 5 and at + 8 <= len(raw):
            raw[at : at + 8] = struct.pack("<q", draw(INT64S))
        elif raw:
            raw[at] ^= draw(st.integers(1, 255))
    return bytes(raw)


# Messages

BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "topic": NAMES,
    "group": NAMES,
    "member": NAMES,
    "name": NAMES,
    "page": PAGES,
    "cron": CRONS,
    "zone": ZONES,
    "arrow": arrows(),
    "due_ms": times(),
    "start_ms": times(),
    "end_ms": times(),
    "time_ms": times(),
    "at_ms": times(),
    "expires_ms": times(),
    # Waiting is not what is tested.
    "wait_ms": st.sampled_from([0, 1, 20, -1, 60_001, 2**63 - 1]),
    "every_ms": st.sampled_from([0, -1, 1, 1_000, 3_600_000, 2**63 - 1]),
}
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: NAMES,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_INT32: INT32S,
    FieldDescriptor.TYPE_INT64: INT64S,
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 5) | INT32S,
}


def _value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    return BY_NAME[field.name] if field.name in BY_NAME else SCALARS[field.type]


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor) -> ProtoMessage:
    """Return any message of a type."""
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not draw(st.sampled_from([True, True, False])):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            pairs = draw(st.dictionaries(_value(key), _value(value), max_size=4))
            for name, held in pairs.items():
                getattr(made, field.name)[name] = held
        elif field.message_type is not None:
            inner = messages(field.message_type)
            if field.is_repeated:
                getattr(made, field.name).extend(draw(st.lists(inner, max_size=4)))
            else:
                getattr(made, field.name).CopyFrom(draw(inner))
        elif field.is_repeated:
            getattr(made, field.name).extend(draw(st.lists(_value(field), max_size=8)))
        else:
            setattr(made, field.name, draw(_value(field)))
    return made


def field_names(descriptor: Descriptor) -> set[str]:
    """Return the names of all fields of a message and of those inside."""
    names: set[str] = set()
    for field in descriptor.fields:
        names.add(field.name)
        if field.message_type is not None:
            names |= field_names(field.message_type)
    return names
