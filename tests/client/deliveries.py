"""Deliveries without a stream, for tests of what is done with them."""

from tests.client.fake_node import merged, messages
from waterclock.client.consumer.ack_queue import AckQueue
from waterclock.client.consumer.delivery import Delivery, Lease
from waterclock.v1 import broker_pb2
from waterclock.v1.broker_pb2 import SubscribeResponse

NOW_MS = 1_000_000
LEASE_MS = 30_000


def delivery_of(
    offsets: list[int], *, partition: int = 0, generation: int = 1, deadline_ms: int = 0
) -> broker_pb2.Delivery:
    """Return what the node says when it hands out messages."""
    return broker_pb2.Delivery(
        partition=partition,
        generation=generation,
        attempt=1,
        deadline_ms=deadline_ms or NOW_MS + LEASE_MS,
        lease_ms=LEASE_MS,
        bounds=merged([bound for offset in offsets for bound in (offset, offset + 1)]),
        messages=messages(
            [{"message_id": b"id-%d" % offset, "value": b"%d" % offset} for offset in offsets]
        ),
    )


def delivered(offsets: list[int], acks: AckQueue, lease: Lease | None = None) -> Delivery:
    """Return messages as a member has them."""
    lease = lease or Lease(0, 1)
    about = delivery_of(offsets, partition=lease.partition, generation=lease.generation)
    return Delivery("orders", about, lease, acks)


def opened(credit: int = 1_000) -> SubscribeResponse:
    return SubscribeResponse(
        opened=SubscribeResponse.Opened(
            member="m", heartbeat_ms=3_000, credit=broker_pb2.Credit(messages=credit)
        )
    )


def assigned(partition: int = 0, generation: int = 1) -> SubscribeResponse:
    return SubscribeResponse(
        assigned=SubscribeResponse.Assigned(partition=partition, generation=generation)
    )


def revoked(partition: int = 0, *, is_cancelled: bool = False) -> SubscribeResponse:
    return SubscribeResponse(
        revoked=SubscribeResponse.Revoked(
            partition=partition, generation=1, deadline_ms=NOW_MS, is_cancelled=is_cancelled
        )
    )
