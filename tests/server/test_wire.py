"""Protobuf written by hand reads as protobuf's own."""

from hypothesis import given
from hypothesis import strategies as st

from waterclock.server.grpc.wire import nested, varint
from waterclock.v1 import broker_pb2 as pb


@given(st.integers(1, 2**63 - 1))
def test_a_varint_is_what_protobuf_writes(number):
    expected = pb.PublishBatchResponse(count=number).SerializeToString()

    assert b"\x08" + varint(number) == expected
    assert varint(0) == b"\x00"


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(0, 2**40))
def test_a_field_is_joined_from_pieces(pieces, offset):
    small = pb.FetchResponse(next_offset=offset).SerializeToString()

    data = nested([pb.FetchResponse.FRAMES_FIELD_NUMBER], [small], pieces)

    expected = pb.FetchResponse(next_offset=offset, frames=b"".join(pieces))
    assert pb.FetchResponse.FromString(data) == expected


@given(st.binary(max_size=40_000), st.lists(st.integers(0, 2**62), max_size=50))
def test_messages_nest(arrow, bounds):
    head = pb.Delivery(partition=3, bounds=bounds)
    data = nested(
        [
            pb.SubscribeResponse.DELIVERY_FIELD_NUMBER,
            pb.Delivery.MESSAGES_FIELD_NUMBER,
            pb.Messages.ARROW_FIELD_NUMBER,
        ],
        [b"", head.SerializeToString(), pb.Messages(append_ms=7).SerializeToString()],
        [memoryview(arrow)],
    )

    messages = pb.Messages(arrow=arrow, append_ms=7)
    delivery = pb.Delivery(partition=3, bounds=bounds, messages=messages)
    assert pb.SubscribeResponse.FromString(data) == pb.SubscribeResponse(delivery=delivery)
