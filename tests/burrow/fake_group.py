"""A broker with one topic and one consumer group, and the judge of what its members do.

The group rebalances as Kafka's does: eagerly (everybody gives up everything) or cooperatively (only
what moves). A member that is not heard of for the session timeout is out; commits are refused by
generation. The judge knows which records were finished, and looks at each commit as it arrives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from waterclock.burrow.core.offset_map import OffsetMaps
from waterclock.burrow.core.records import Commit, TopicPartition

SESSION_MS = 300
Position = tuple[int, int]
"""Partition and offset of a message."""
Lane = tuple[int, bytes]
"""Partition and key: what must not overlap."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Message:
    key: bytes | None
    failures: int = 0
    """How many attempts fail before one succeeds."""
    is_poison: bool = False
    work_ms: int = 5


class Judge:
    """What really happened to each message, seen from outside of the engines."""

    def __init__(self, logs: list[dict[int, Message]], order: str) -> None:
        self.logs = logs
        self.order = order
        self.finished: set[Position] = set()
        self.given_up: set[Position] = set()
        self.attempts: dict[Position, int] = {}
        self.repeats: list[Position] = []
        """Messages that were begun again after they were finished."""
        self.maps = OffsetMaps(units_max=4_095, text="base32768")

    def begin(self, batch: list[Position], running: set[Position]) -> None:
        """A member begins with messages, one after the other, while it works on others."""
        lanes = {self._lane(other): other for other in running}
        for place in batch:
            if place in self.finished:
                self.repeats.append(place)
            lane = self._lane(place)
            if lane is not None and lane in lanes:
                raise Violation(f"{place} overlaps {lanes[lane]} of the same key")
            if lane is not None and place not in self.attempts:
                self._check_first(place, lane, set(batch))
            self.attempts[place] = self.attempts.get(place, 0) + 1

    def _check_first(self, place: Position, lane: Lane, batch: set[Position]) -> None:
        for earlier in self.logs[place[0]]:
            before = (place[0], earlier)
            if earlier >= place[1]:
                break
            is_open = not (before in self.finished or before in self.given_up or before in batch)
            if is_open and self._lane(before) == lane:
                raise Violation(f"{place} was begun before {before} of the same key ended")

    def _lane(self, place: Position) -> Lane | None:
        key = b"" if self.order == "partition" else self.logs[place[0]][place[1]].key
        return None if self.order == "none" or key is None else (place[0], key)

    def check_commit(self, partition: int, commit: Commit, log_end: int) -> None:
        """Look at a commit that the broker accepts."""
        log = self.logs[partition]
        open_offsets = [o for o in log if (partition, o) not in self.finished]
        above = [offset for offset in open_offsets if offset < commit.offset]
        if above:
            raise Violation(f"partition {partition}: commit {commit.offset} is above {above[:5]}")
        for start, end in self.maps.decode(commit.metadata, base=commit.offset, log_end=log_end):
            lied = [offset for offset in open_offsets if start <= offset < end]
            if lied:
                raise Violation(f"partition {partition}: the map calls {lied[:5]} finished")

    @property
    def missing(self) -> list[Position]:
        """Messages that could be finished, and are not."""
        return [
            (partition, offset)
            for partition, log in enumerate(self.logs)
            for offset, message in log.items()
            if (partition, offset) not in self.finished
            and not (message.is_poison and (partition, offset) in self.given_up)
        ]


@dataclass
class Membership:
    """What the broker knows of a member, and has to tell it."""

    generation: int = 0
    owned: set[int] = field(default_factory=set)
    heard_ms: int = 0
    has_joined: bool = False
    to_revoke: set[int] = field(default_factory=set)
    to_assign: set[int] | None = None


class FakeGroup:
    """The coordinator."""

    def __init__(self, rng: Random, judge: Judge, *, is_eager: bool) -> None:
        self.rng = rng
        self.judge = judge
        self.is_eager = is_eager
        self.members: dict[int, Membership] = {}
        self.generation = 0
        self.is_rebalancing = False
        self.committed: dict[int, Commit] = {}
        self._target: dict[int, set[int]] = {}
        self.commit_codes: list[int] = []
        """Errors to answer the next commits with."""

    def log_end(self, partition: int) -> int:
        return max(self.judge.logs[partition], default=-1) + 1

    def join(self, member: int, now_ms: int) -> None:
        self.members[member] = Membership(heard_ms=now_ms)
        self._rebalance()

    def leave(self, member: int) -> None:
        if self.members.pop(member, None) is not None:
            self._rebalance()

    def expire(self, now_ms: int) -> None:
        for member, membership in list(self.members.items()):
            if now_ms - membership.heard_ms > SESSION_MS:
                self.leave(member)

    def _rebalance(self) -> None:
        """Begin one; if one is under way, it begins again."""
        self.is_rebalancing = True
        self._target = self._assignment()
        for member, membership in self.members.items():
            membership.has_joined = False
            membership.owned -= membership.to_assign or set()  # it was never told
            membership.to_assign = None
            kept = set() if self.is_eager else self._target[member]
            membership.to_revoke = membership.owned - kept
        self._go_on()

    def _assignment(self) -> dict[int, set[int]]:
        target: dict[int, set[int]] = {member: set() for member in self.members}
        order = list(target)
        self.rng.shuffle(order)
        for partition in range(len(self.judge.logs)):
            if order:
                target[order[partition % len(order)]].add(partition)
        return target

    def gave_up(self, member: int, partitions: set[int]) -> None:
        """A member has given up partitions; if these are all it had to, it joins again."""
        membership = self.members[member]
        membership.owned -= partitions
        membership.to_revoke -= partitions
        if self.is_rebalancing and not membership.to_revoke:
            membership.has_joined = True
            self._go_on()

    def _go_on(self) -> None:
        if self.is_rebalancing and all(each.has_joined for each in self.members.values()):
            self.is_rebalancing = False
            self.generation += 1
            for member, membership in self.members.items():
                membership.generation = self.generation
                membership.to_assign = self._target[member] - membership.owned
                membership.owned = set(self._target[member])

    def commit(self, member: int, commits: Mapping[TopicPartition, Commit]) -> int:
        """Answer a commit with a code; an error may have been applied all the same."""
        membership = self.members.get(member)
        if membership is None:
            return 25
        if membership.generation != self.generation:
            return 22
        code = self.commit_codes.pop() if self.commit_codes else 0
        if any(len(commit.metadata) > 4_095 for commit in commits.values()):
            return 12
        if code in (0, 7):  # 7: the answer was lost, and not the commit
            for name, commit in commits.items():
                if name.partition not in membership.owned:
                    raise Violation(f"{name} was committed by one who does not own it")
                self.judge.check_commit(name.partition, commit, self.log_end(name.partition))
                self.committed[name.partition] = commit
        return code
