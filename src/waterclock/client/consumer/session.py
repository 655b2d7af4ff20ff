"""One stream of a member, without the stream: responses of the node go in, requests come out.

Leases run while messages wait here for the program to ask for them. The client
extends those that were not handed out; those that were are the program's to answer, or with
`keep_alive` are extended too. A partition that is revoked is let go at once: what was not handed
out is given back, so that it can move as soon as the rest is answered.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from waterclock.client.consumer.ack_queue import AckQueue
from waterclock.client.consumer.delivery import EXTEND, GIVE_BACK, Delivery, Lease, ProcessSpans
from waterclock.client.encryption import Keys
from waterclock.model.errors import NodeFailed
from waterclock.v1 import broker_pb2

URGENT_FRACTION = 4
"""Acks are sent at once when they free this part of the credit."""
HELD_FRACTION = 0.75
"""With so much of the credit in use, a program that waits for messages waits for its acks."""


class Session:
    """The state of one stream."""

    def __init__(
        self,
        topic: str,
        *,
        keep_alive: bool,
        wake: Callable[[bool], None],
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        credit: broker_pb2.Credit | None = None,
        crypto_keys: Keys | None = None,
        spans: ProcessSpans | None = None,
    ) -> None:
        """`now_ms` is the node's time, for instants; leases are measured by `monotonic_ms`, as
        neither side's clock, once set, must end them or make them last."""
        self._topic = topic
        self._crypto_keys = crypto_keys
        self._spans = spans
        self._monotonic_ms = monotonic_ms
        self._keep_alive = keep_alive
        self._leases: dict[tuple[int, int], Lease] = {}
        self._unsettled: dict[Delivery, None] = {}
        self._held = 0
        """Messages in deliveries that are not settled."""
        self._checks: list[tuple[int, int, Delivery]] = []
        """A heap: when to see to a delivery, and a number that settles ties."""
        self._check_count = 0
        self._credit = credit
        self._credit_messages = 0
        self.acks = AckQueue(wake, now_ms)
        self.buffer: deque[Delivery] = deque()
        """What came and is not all handed out."""
        self.member = ""
        self.made_partitions = 0
        self.heartbeat_ms = 1_000
        self.is_open = False
        self.is_moving = False
        """The member leaves with nothing in its hands, to come back by another way."""

    def __repr__(self) -> str:
        state = f"{len(self._leases)} leases, {len(self._unsettled)} deliveries"
        return f"<Session {self.member or 'not open'}: {state}>"

    @property
    def partitions(self) -> list[int]:
        return sorted(lease.partition for lease in self._leases.values())

    def handle(self, response: broker_pb2.SubscribeResponse) -> None:
        """Take in what the node says."""
        match response.WhichOneof("event"):
            case "delivery":
                self._delivered(response.delivery)
            case "opened":
                self._opened(response.opened)
            case "assigned":
                lease = Lease(response.assigned.partition, response.assigned.generation)
                self._leases[lease.partition, lease.generation] = lease
            case "revoked":
                self._revoked(response.revoked)
            case "lost":
                self._lost(response.lost.partition, response.lost.generation)
            case "refused":
                refused = response.refused
                if refused.is_stale:
                    self._lost(refused.partition, refused.generation)
            case None:
                pass  # of a newer node, or a heartbeat

    def _opened(self, opened: broker_pb2.SubscribeResponse.Opened) -> None:
        self.is_open = True
        self.member = opened.member
        self.made_partitions = opened.made_partitions
        self.heartbeat_ms = max(opened.heartbeat_ms, 1)
        # Its own credit, unless we asked for another.
        self._credit_messages = (self._credit or opened.credit).messages
        self.acks.urgent_count = max(self._credit_messages // URGENT_FRACTION, 1)

    def _delivered(self, response: broker_pb2.Delivery) -> None:
        lease = self._leases.get((response.partition, response.generation))
        if lease is None:
            raise NodeFailed(
                f"messages of partition {response.partition}, which was never assigned"
            )
        if self.is_moving:
            return  # it was on its way when we left; the node hands it out again, uncounted
        delivery = Delivery(self._topic, response, lease, self.acks, self._crypto_keys, self._spans)
        self._unsettled[delivery] = None
        self._held += delivery.count
        delivery.ends_ms = self._monotonic_ms() + delivery.lease_ms
        self._check_at(delivery.ends_ms - delivery.lease_ms // 2, delivery)
        self.buffer.append(delivery)

    def _revoked(self, response: broker_pb2.SubscribeResponse.Revoked) -> None:
        lease = self._leases.get((response.partition, response.generation))
        if lease is None:
            return
        lease.is_revoked = not response.is_cancelled
        if response.is_cancelled:
            return
        for delivery in self._unsettled:
            rows = range(delivery.next_row, delivery.end_row)
            if delivery.lease is lease and rows:
                delivery.end_row = delivery.next_row
                self.acks.answer(delivery, GIVE_BACK, rows)

    def _lost(self, partition: int, generation: int) -> None:
        lease = self._leases.pop((partition, generation), None)
        if lease is not None:
            lease.is_void = True
            for delivery in [each for each in self._unsettled if each.lease is lease]:
                self._forget(delivery)

    def void(self) -> None:
        """The stream is over: no answer counts any more."""
        for lease in self._leases.values():
            lease.is_void = True
        self._leases.clear()
        self._unsettled.clear()
        self._checks.clear()
        self.buffer.clear()
        self._held = 0
        self.is_open = False

    def peek(self) -> Delivery | None:
        """Return the messages that are next, if there are any; they stay until all were handed out,
        so that whoever asks after a program has left its loop goes on in the middle."""
        while self.buffer:
            delivery = self.buffer[0]
            if not delivery.lease.is_void and delivery.next_row < delivery.end_row:
                return delivery
            self.buffer.popleft()
        return None

    def next_delivery(self) -> Delivery | None:
        """Return the messages that are next, which nobody else gets then, if there are any."""
        return self.buffer.popleft() if self.peek() is not None else None

    @property
    def is_idle(self) -> bool:
        """Nothing is held that was not answered, and the node has been sent all answers."""
        return self.is_open and not self._unsettled and not self.acks

    @property
    def is_starving(self) -> bool:
        """New messages wait for our acks."""
        return self._held >= self._credit_messages * HELD_FRACTION

    def next_deadline(self) -> int | None:
        """Return when to tick, at the latest, on the monotonic clock."""
        return self._checks[0][0] if self._checks else None

    def tick(self, now_ms: int) -> None:
        """Extend what runs out; do not hand out what ran out, for the node has given it up."""
        while self._checks and self._checks[0][0] <= now_ms:
            delivery = heappop(self._checks)[2]
            if delivery not in self._unsettled:
                continue
            if delivery.ends_ms <= now_ms:
                delivery.end_row = delivery.next_row
                self._forget(delivery)
            elif rows := self._renewable(delivery):
                delivery.ends_ms = now_ms + delivery.lease_ms
                delivery.deadline_ms = self.acks.now_ms() + delivery.lease_ms
                self.acks.answer(delivery, EXTEND, rows, after_ms=delivery.lease_ms)
                self._check_at(delivery.ends_ms - delivery.lease_ms // 2, delivery)
            else:
                self._check_at(delivery.ends_ms, delivery)

    def request(self, now_ms: int) -> broker_pb2.SubscribeRequest:
        """Return the next request; with nothing in it, it is a heartbeat."""
        self.tick(now_ms)
        touched: set[Delivery] = set()
        request = broker_pb2.SubscribeRequest(answers=self.acks.drain(touched))
        for delivery in touched:
            if delivery.is_settled:
                self._forget(delivery)
        return request

    def _renewable(self, delivery: Delivery) -> list[int]:
        """Return the rows to extend: those not handed out, and those the program works on."""
        rows = [*range(delivery.next_row, delivery.end_row)]
        if not self._keep_alive:
            return rows
        handed = range(delivery.next_row)
        return [row for row in handed if row not in delivery.answered] + rows

    def _check_at(self, time_ms: int, delivery: Delivery) -> None:
        self._check_count += 1
        heappush(self._checks, (time_ms, self._check_count, delivery))

    def _forget(self, delivery: Delivery) -> None:
        if delivery in self._unsettled:
            del self._unsettled[delivery]
            self._held -= delivery.count
