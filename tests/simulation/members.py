"""Two consumers: one that polls over HTTP, one on a stream as gRPC has it; each alone in its group.

What they are handed and what becomes of their answers goes to the model of their group. Both go on
saying that they are there, as long as their process and the node run.
"""

import asyncio
from typing import Protocol

from tests.simulation.group_model import GroupModel, Handed, Lease
from tests.simulation.message_model import Messages
from tests.simulation.simulated_node import SESSION_TIMEOUT_MS, SimulatedNode
from waterclock.node.groups.outbound import Delivery, Refused
from waterclock.node.groups.session import AnswerKind, Session

TOPIC = "t"
EXTEND_MS = 8_000
PATIENCE_MS = SESSION_TIMEOUT_MS + 600
"""Who says nothing for so long is taken for dead, also after a pause."""
WAYS_TO_LEAVE = ["clean", "broken", "replaced", "silent"]
KINDS = {
    "ack": AnswerKind.ACK,
    "nack": AnswerKind.NACK,
    "giveBack": AnswerKind.GIVE_BACK,
    "reject": AnswerKind.REJECT,
    "extend": AnswerKind.EXTEND,
}


class Consumer(Protocol):
    """The one member of a group."""

    model: GroupModel
    names_attempts: bool
    """An answer says which attempt at a message it is about."""

    def take(self, limit: int) -> list[Handed]:
        """Take messages."""
        ...

    def listen(self, limit: int) -> None:
        """Wait for messages while other things happen."""
        ...

    def heard(self) -> list[Handed]:
        """Return what has come for who waits."""
        ...

    def answer(self, kind: str, leases: list[Lease]) -> None:
        """Say something of messages."""
        ...

    def leave(self, how: str) -> None:
        """Go, in one of the ways there are."""
        ...

    def restarted(self) -> None:
        """Take note that the node was restarted."""
        ...


class Polling:
    """Takes and answers over HTTP."""

    names_attempts = True

    def __init__(self, node: SimulatedNode, messages: Messages) -> None:
        self._node = node
        self._messages = messages
        self.model = GroupModel("polling", messages)
        self._poll_under_way: asyncio.Task[list[Handed]] | None = None

    def take(self, limit: int) -> list[Handed]:
        """Poll once, briefly."""
        return self._node.wait(self._poll(limit, "100ms"))

    async def _poll(self, limit: int, wait: str) -> list[Handed]:
        path = f"/topics/{TOPIC}/messages"
        answer = await self._node.ask("GET", path, group="polling", limit=limit, wait=wait)
        if answer.status == 503:  # the node stops
            return []
        assert answer.status == 200, answer
        return [
            Handed(
                int(message["value"]),
                Lease(*map(int, message["lease"].split("-"))),
                message.get("dueMs"),
                message["deadlineMs"],
                answer.wall_ms,
                answer.steady_ms,
            )
            for message in answer.body["messages"]
        ]

    def listen(self, limit: int) -> None:
        """Poll, and go on waiting while other things happen."""
        if self._poll_under_way is None:
            self._poll_under_way = self._node.loop.create_task(self._poll(limit, "20s"))

    def heard(self) -> list[Handed]:
        """Return what has come since for who waits."""
        poll = self._poll_under_way
        if poll is None or not poll.done():
            return []
        self._poll_under_way = None
        return poll.result()

    def answer(self, kind: str, leases: list[Lease]) -> None:
        """Answer for messages by their leases."""
        body = {"group": "polling", kind: list(map(str, leases)), "extendBy": f"{EXTEND_MS}ms"}
        answer = self._node.call("POST", f"/topics/{TOPIC}/acks", body)
        assert answer.status in (200, 409), answer
        refused = {*map(str, leases)} if answer.status == 409 else {*answer.body["refused"]}
        now_ms = self._node.clock.monotonic_ms()
        for lease in leases:
            is_refused = str(lease) in refused
            self.model.answered(
                lease, kind, is_refused=is_refused, now_ms=now_ms, until_ms=now_ms + EXTEND_MS
            )

    def leave(self, how: str) -> None:
        """Leave; one who polls has no connection that could break."""
        self._node.call("POST", f"/topics/{TOPIC}/acks", {"group": "polling", "leave": True})
        self.model.lost_member()
        self._node.run_turns(5)

    def restarted(self) -> None:
        """Wait no more; the next poll joins anew."""
        if self._poll_under_way is not None:
            self._poll_under_way.cancel()
            self._poll_under_way = None


class Streaming:
    """Has a session, as a subscription over gRPC has one."""

    names_attempts = False

    def __init__(self, node: SimulatedNode, messages: Messages) -> None:
        self._node = node
        self._messages = messages
        self.model = GroupModel("streaming", messages)
        self._session: Session | None = None
        self._beating: asyncio.Task[None] | None = None

    def listen(self, limit: int) -> None:
        """Do nothing: what there is room for is taken in its time."""

    def heard(self) -> list[Handed]:
        """Return nothing: it is taken."""
        return []

    def take(self, limit: int) -> list[Handed]:
        """Say how much there is room for, and take what has come."""
        return self._node.wait(self._take(limit))

    async def _take(self, limit: int) -> list[Handed]:
        session = self._session or await self._open()
        room = len(self.model.held()) + limit
        session.set_credit(room, 1 << 20)
        await asyncio.sleep(0.01)
        found: list[Handed] = []
        while (item := session.take()) is not None:
            if isinstance(item, Delivery):
                found += self._handed(item)
        self._check_alive()
        return found

    async def _open(self) -> Session:
        groups = self._node.node.groups
        session = await groups.open_session(TOPIC, "streaming", member="m", credit=(0, 0))
        self._session = session
        self._beating = asyncio.get_running_loop().create_task(self._beat(session))
        return session

    def _handed(self, delivery: Delivery) -> list[Handed]:
        rows = delivery.messages.rows().select(["value", "due_ms"]).to_pylist()
        offsets = [offset for span in delivery.messages.ranges for offset in range(*span)]
        return [
            Handed(
                int(row["value"]),
                Lease(delivery.partition, delivery.generation, offset, delivery.attempt),
                row["due_ms"],
                delivery.deadline_ms,
                self._node.clock.now_ms(),
                self._node.clock.monotonic_ms(),
            )
            for offset, row in zip(offsets, rows, strict=True)
        ]

    async def _beat(self, session: Session) -> None:
        while session.ending is None:
            session.heartbeat()
            await asyncio.sleep(session.heartbeat_ms / 1_000)

    def _check_alive(self) -> None:
        if self._session is not None:
            assert self._session.ending is None, f"a live member was ended: {self._session}"

    def answer(self, kind: str, leases: list[Lease]) -> None:
        """Answer for messages one by one."""
        self._check_alive()
        for lease in leases:
            self._node.wait(self._answer(kind, lease))

    async def _answer(self, kind: str, lease: Lease) -> None:
        refusals: list[Refused] = []
        clock, session = self._node.clock, self._session
        if session is not None:
            session.on_refused = refusals.append
            ranges = [(lease.offset, lease.offset + 1)]
            at_ms = clock.now_ms() + EXTEND_MS if kind == "extend" else 0
            session.answer(KINDS[kind], lease.partition, lease.generation, ranges, at_ms)
            session.on_refused = None
        is_refused = session is None or bool(refusals)
        now_ms = clock.monotonic_ms()
        self.model.answered(
            lease, kind, is_refused=is_refused, now_ms=now_ms, until_ms=now_ms + EXTEND_MS
        )

    def leave(self, how: str) -> None:
        """Close the session, break its connection, begin another one, or say nothing more."""
        if self._session is not None:
            self._node.wait(self._leave(self._session, how))
        self.model.lost_member()

    async def _leave(self, session: Session, how: str) -> None:
        assert self._beating is not None
        self._beating.cancel()
        self._session = None
        now_ms = self._node.clock.monotonic_ms()
        if how == "replaced":
            await self._open()
        elif how == "silent" and self.model.is_blocking(PATIENCE_MS, now_ms):
            await asyncio.sleep(PATIENCE_MS / 1_000)
        else:
            session.close(clean=how == "clean")
        await asyncio.sleep(0)
        assert session.ending is not None, f"{how}, and not ended: {session}"

    def restarted(self) -> None:
        """Have no session any more; the next call opens one."""
        if self._beating is not None:
            self._beating.cancel()
        self._session = self._beating = None
