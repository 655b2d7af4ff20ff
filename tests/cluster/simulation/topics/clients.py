"""Who uses a simulated cluster: publishers and readers.

A publisher sends a message until somebody acknowledges it, always under its one id, to whatever
node it takes for the leader. Some messages are scheduled, and some of those it cancels or puts off.
Some are to be on all replicas, as long as that is no more trouble than `ALL_ATTEMPTS`, and some on
the leader's disk only.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tests.cluster.history.events import Changed, Outcome, Polled, Published
from tests.cluster.simulation.topics.hosted import Answer, Answered, Hosted
from waterclock.model.message import Acks

if TYPE_CHECKING:
    from tests.cluster.simulation.topics.process import Process
    from tests.cluster.simulation.topics.world import World

DRAWN_ACKS: tuple[Acks, ...] = ("quorum", "quorum", "quorum", "quorum", "leader", "all")
Step = Callable[["Process", Answered], None]
TIMEOUT_MS = 1_500
GAP_MS = (10, 160)
"""Between two messages of a publisher."""
ALL_ATTEMPTS = 3
"""Then a majority will do: a machine that is lost is not always replaced."""


class Request:
    """Something that is asked of nodes until one of them has an answer."""

    def __init__(self, world: "World", rng: Random, act: Step, heard: Answered) -> None:
        self._world = world
        self._rng = rng
        self._act = act
        self._heard = heard
        self._attempt = 0
        self.is_doubtful = False
        """Some attempt may have done it."""
        self._send(rng.choice(world.names))

    def _send(self, node: str) -> None:
        self._attempt += 1
        attempt, world = self._attempt, self._world

        def reply(answer: Answer, offset: int | None) -> None:
            world.timeline.after(self._rng.randint(0, 3), lambda: hear(answer, offset))

        def hear(answer: Answer, offset: int | None) -> None:
            if attempt == self._attempt:
                self._answered(node, answer, offset)

        world.timeline.after(self._rng.randint(0, 3), lambda: self._arrive(node, reply))
        world.timeline.after(TIMEOUT_MS, lambda: hear("unknown", None))

    def _arrive(self, node: str, reply: Answered) -> None:
        process = self._world.processes[node]
        if process is None:
            reply("refused", None)
        else:
            process.handle(lambda: self._act(process, reply))

    def _answered(self, node: str, answer: Answer, offset: int | None) -> None:
        self._attempt += 1
        if answer in ("acked", "ended"):
            self._heard(answer, offset)
            return
        self.is_doubtful |= answer == "unknown"
        names = self._world.names
        following = names[(names.index(node) + 1) % len(names)]
        self._world.timeline.after(self._rng.randint(5, 40), lambda: self._send(following))


class Publisher:
    """Sends one message after the other."""

    def __init__(self, world: "World", name: str, rng: Random) -> None:
        self.name = name
        self._world = world
        self._rng = rng
        self._count = 0
        self._pending: Published | None = None
        self._changing: set[Changed] = set()
        self._later()

    @property
    def unanswered(self) -> list[Published | Changed]:
        """What is still waited for."""
        return [*([self._pending] if self._pending else []), *self._changing]

    def _later(self) -> None:
        self._world.timeline.after(self._rng.randint(*GAP_MS), self._publish)

    def _publish(self) -> None:
        world, rng = self._world, self._rng
        if not world.is_loaded:
            return
        self._count += 1
        message = f"{self.name}-{self._count}"
        log_id = rng.choice(world.log_ids)
        now_ms = world.timeline.now_ms
        due_ms = now_ms + rng.randint(50, 2_500) if rng.random() < 0.35 else None
        sent = Published(
            message, world.partition_names[log_id], now_ms, None, "unknown", due_ms=due_ms
        )
        self._pending = sent
        acks = rng.choice(DRAWN_ACKS)
        attempts = 0

        def send(to: "Process", reply: Answered) -> None:
            nonlocal acks, attempts
            attempts += 1
            if acks == "all" and attempts > ALL_ATTEMPTS:
                acks = "quorum"
            to.publish(log_id, message, due_ms, reply, acks=acks)

        def heard(answer: Answer, offset: int | None) -> None:
            assert answer == "acked"
            assert offset is not None
            self._pending = None
            until_ms = world.timeline.now_ms
            world.counts[f"publishes acked for {acks}"] += 1
            world.note(replace(sent, until_ms=until_ms, outcome="acked", offset=offset, acks=acks))
            # What only the leader had may be lost, and another message be at its offset.
            if due_ms is not None and acks != "leader" and rng.random() < 0.6:
                world.timeline.after(
                    rng.randint(0, 1_500), lambda: self._change(log_id, message, offset)
                )
            self._later()

        Request(world, rng, send, heard)

    def _change(self, log_id: bytes, message: str, offset: int) -> None:
        """Cancel a scheduled message, or put it off; then perhaps once more."""
        world, rng = self._world, self._rng
        now_ms = world.timeline.now_ms
        if not world.is_loaded:
            return
        due_ms = now_ms + rng.randint(20, 2_500) if rng.random() < 0.5 else None
        asked = Changed(message, now_ms, None, "unknown", due_ms)
        self._changing.add(asked)

        def heard(answer: Answer, _: int | None) -> None:
            self._changing.discard(asked)
            outcome: Outcome = "acked" if answer == "acked" else "refused"
            if answer == "ended" and request.is_doubtful:
                outcome = "unknown"
            world.note(Changed(message, now_ms, world.timeline.now_ms, outcome, due_ms))
            # An attempt that is still under way would undo a later one.
            if due_ms is not None and outcome == "acked" and not request.is_doubtful:
                world.timeline.after(
                    rng.randint(0, 900), lambda: self._change(log_id, message, offset)
                )

        request = Request(
            world, rng, lambda to, reply: to.change(log_id, offset, due_ms, reply), heard
        )


class Reader:
    """Reads one partition on and on, from whatever replica is there."""

    def __init__(self, world: "World", name: str, log_id: bytes, rng: Random) -> None:
        self._world = world
        self._name = name
        self._log_id = log_id
        self._rng = rng
        self._offset = 0
        self._begun = 0
        self._later()

    def _later(self) -> None:
        self._world.timeline.after(self._rng.randint(40, 250), self._poll)

    def _poll(self) -> None:
        self._later()
        process = self._world.processes[self._rng.choice(self._world.names)]
        if process is not None and process.is_running:
            hosted = process.replicas.get(self._log_id)
            if hosted is not None and hosted.is_readable:
                name = f"{self._name}.{self._begun}"
                self._offset = poll(self._world, name, hosted, self._offset)
        if self._rng.random() < 0.02:
            self._begun, self._offset = self._begun + 1, 0


def poll(world: "World", reader: str, hosted: Hosted, offset: int) -> int:
    """Read what is committed on a replica; return where to go on."""
    frames = hosted.read(offset)
    if not frames:
        return offset
    rows = tuple(row for frame in frames for row in frame.rows)
    end, partition = frames[-1].end, hosted.partition
    world.note(Polled(reader, hosted.me, partition, world.timeline.now_ms, offset, end, rows))
    return end
