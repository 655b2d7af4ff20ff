"""A group on one topic: its members, and which of them owns which partition.

Members send heartbeats (`HeartbeatReceived`); the group expires a member that is silent for
`session_timeout_ms`, and at once one whose connection breaks (`MemberLost`). Each change of members
begins a new generation and a new assignment (`assignment.py`):

    owned ──revoked──▶ draining ──drained, or grace over──▶ free ──assigned──▶ owned
      │                   │  ▲ a later change may cancel this
      └── owner left ─────┴──┴──────────────────────────────▶ free

A partition has at most one owner. It moves only once its owner holds nothing more of it, or the
grace is over; then what the owner still held goes to the next one, and the owner's acks are
refused: each ownership has the generation in which it began, and no two of a partition share one.
Members that stay keep their partitions, their generation and their leases.

A member that joins again under its name is a new session. What the old one held is handed out again
as with one that was silent: whether the first of it has failed is for the cursor to say.
"""

from dataclasses import dataclass
from typing import assert_never

from waterclock.delivery.assignment import assign
from waterclock.model.ids import Millis
from waterclock.model.sections import GroupConfig


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A member opened a session."""

    member: str


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member closed its session in good order."""

    member: str


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A member's connection broke: it is gone, as one that was silent for too long."""

    member: str


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A member is there."""

    member: str


@dataclass(frozen=True, slots=True)
class PartitionDrained:
    """The owner of a revoked partition holds nothing more of it (the cursor's ReportDrained)."""

    partition: int
    generation: int


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """The topic has more partitions now; `partitions` of them."""

    partitions: int


GroupEvent = (
    MemberJoined | MemberLeft | MemberLost | HeartbeatReceived | PartitionDrained | PartitionsAdded
)


@dataclass(frozen=True, slots=True)
class SaveGeneration:
    """Make the generation durable before performing what follows: none may ever come twice."""

    generation: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    """The member was silent for too long, or is there anew: end its stream if it has one."""

    member: str


@dataclass(frozen=True, slots=True)
class RefuseMember:
    """Tell the member that it is not in the group: unknown (it must join), or there is no room."""

    member: str
    members_max: int | None = None
    """The limit that was reached, if that is why."""


@dataclass(frozen=True, slots=True)
class Release:
    """End an ownership (the cursor's PartitionReleased)."""

    partition: int
    member: str
    generation: int
    is_counted: bool


@dataclass(frozen=True, slots=True)
class Revoke:
    """Have an ownership end soon (PartitionRevoked); tell the member until when it may ack."""

    partition: int
    member: str
    generation: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class CancelRevoke:
    """Let an ownership go on (RevocationCancelled)."""

    partition: int
    member: str
    generation: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Begin an ownership (PartitionAssigned, with the credit of the member's session)."""

    partition: int
    member: str
    generation: int


GroupEffect = (
    SaveGeneration | CloseSession | RefuseMember | Release | Revoke | CancelRevoke | Assign
)


@dataclass(slots=True)
class _Partition:
    owner: str | None = None
    generation: int = 0
    """In which the ownership began."""
    target: str | None = None
    grace_end_ms: int | None = None
    """Set while it is draining."""


class Group:
    """The members of a group and their partitions.

    Begin with the last saved generation: none before or at it is used again.
    """

    def __init__(self, config: GroupConfig, *, partitions: int, generation: int = 0) -> None:
        self._config = config
        self._generation = generation
        self._heard_ms: dict[str, int] = {}
        self._partitions = [_Partition() for _ in range(partitions)]

    def __repr__(self) -> str:
        return (
            f"<Group generation {self._generation}, {len(self._heard_ms)} members, "
            f"{len(self._partitions)} partitions>"
        )

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self._heard_ms)

    def owners(self) -> tuple[tuple[str, int] | None, ...]:
        """Return the owner and the generation of each partition."""
        return tuple(
            None if part.owner is None else (part.owner, part.generation)
            for part in self._partitions
        )

    def handle(self, event: GroupEvent, now_ms: Millis) -> list[GroupEffect]:
        """Take note of what happened; return what to do, in this order."""
        match event:
            case MemberJoined(member):
                return self._join(member, now_ms)
            case MemberLeft(member) | MemberLost(member):
                if member not in self._heard_ms:
                    return [RefuseMember(member)]
                is_counted = isinstance(event, MemberLost)
                return self._rebalance(now_ms, gone=[member], is_counted=is_counted)
            case HeartbeatReceived(member):
                if member not in self._heard_ms:
                    return [RefuseMember(member)]
                self._heard_ms[member] = max(now_ms, self._heard_ms[member])
                return []
            case PartitionDrained(number, generation):
                return self._move_drained(number, generation)
            case PartitionsAdded(partitions):
                more = partitions - len(self._partitions)
                self._partitions += [_Partition() for _ in range(more)]
                return self._rebalance(now_ms) if more > 0 else []
            case _:
                assert_never(event)

    def tick(self, now_ms: Millis) -> list[GroupEffect]:
        """Expire members that were silent, and move partitions whose grace is over."""
        timeout_ms = self._config.session_timeout_ms
        silent = [name for name, ms in self._heard_ms.items() if ms + timeout_ms <= now_ms]
        effects: list[GroupEffect] = []
        if silent:
            effects += [CloseSession(member) for member in silent]
            effects += self._rebalance(now_ms, gone=silent, is_counted=True)
        for number, part in enumerate(self._partitions):
            if part.grace_end_ms is not None and part.grace_end_ms <= now_ms:
                effects += self._move(number)
        return effects

    def next_deadline(self) -> Millis | None:
        """Return when to tick, if nothing else happens before."""
        times = [ms + self._config.session_timeout_ms for ms in self._heard_ms.values()]
        times += [p.grace_end_ms for p in self._partitions if p.grace_end_ms is not None]
        return Millis(min(times)) if times else None

    def check_invariants(self) -> None:
        """Fail if the assignment is unbalanced, or a partition is where it cannot be."""
        shares = dict.fromkeys(self._heard_ms, 0)
        for part in self._partitions:
            assert part.owner is None or part.owner in self._heard_ms
            assert part.generation <= self._generation
            is_moving = part.owner is not None and part.owner != part.target
            assert is_moving == (part.grace_end_ms is not None)
            assert part.owner is not None or part.target is None
            if part.target is not None:
                shares[part.target] += 1
        if shares:
            assert sum(shares.values()) == len(self._partitions)
            assert max(shares.values()) - min(shares.values()) <= 1

    def _join(self, member: str, now_ms: int) -> list[GroupEffect]:
        if member in self._heard_ms:
            effects: list[GroupEffect] = [CloseSession(member)]
            return effects + self._rebalance(now_ms, restarted=member, is_counted=True)
        if len(self._heard_ms) >= self._config.members_max:
            return [RefuseMember(member, self._config.members_max)]
        self._heard_ms[member] = now_ms
        return self._rebalance(now_ms)

    def _rebalance(
        self,
        now_ms: int,
        *,
        gone: list[str] | None = None,
        restarted: str | None = None,
        is_counted: bool = False,
    ) -> list[GroupEffect]:
        """Begin a generation: end what has no owner any more, and aim anew."""
        self._generation += 1
        owners = [part.owner for part in self._partitions]
        ended = gone or []
        for member in ended:
            del self._heard_ms[member]
        if restarted is not None:
            self._heard_ms[restarted] = now_ms
            ended = [restarted]
        effects: list[GroupEffect] = [SaveGeneration(self._generation)]
        for number, part in enumerate(self._partitions):
            if part.owner in ended:
                effects.append(self._release(number, is_counted=is_counted))
        targets = assign(list(self._heard_ms), owners)
        for number, target in enumerate(targets):
            effects += self._aim(number, target, now_ms)
        return effects

    def _aim(self, number: int, target: str | None, now_ms: int) -> list[GroupEffect]:
        part = self._partitions[number]
        part.target = target
        if part.owner is None:
            return self._take(number)
        if part.owner == target:
            if part.grace_end_ms is None:
                return []
            part.grace_end_ms = None
            return [CancelRevoke(number, part.owner, part.generation)]
        if part.grace_end_ms is not None:
            return []  # it is draining already, and goes elsewhere
        part.grace_end_ms = now_ms + self._config.revoke_grace_ms
        return [Revoke(number, part.owner, part.generation, part.grace_end_ms)]

    def _move_drained(self, number: int, generation: int) -> list[GroupEffect]:
        if not 0 <= number < len(self._partitions):
            return []
        part = self._partitions[number]
        if part.grace_end_ms is None or part.generation != generation:
            return []  # it was cancelled, or the grace was over before
        return self._move(number)

    def _move(self, number: int) -> list[GroupEffect]:
        return [self._release(number, is_counted=False), *self._take(number)]

    def _release(self, number: int, *, is_counted: bool) -> Release:
        part = self._partitions[number]
        assert part.owner is not None
        release = Release(number, part.owner, part.generation, is_counted)
        part.owner, part.grace_end_ms = None, None
        return release

    def _take(self, number: int) -> list[GroupEffect]:
        part = self._partitions[number]
        if part.target is None:
            return []
        assert part.generation < self._generation, "an ownership has its own generation"
        part.owner, part.generation = part.target, self._generation
        return [Assign(number, part.owner, part.generation)]
