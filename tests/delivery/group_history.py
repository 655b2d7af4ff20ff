"""Random histories of a group, with a cursor of the real kind for each partition."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from waterclock.delivery.assignment import assign
from waterclock.delivery.credits import Credit
from waterclock.delivery.cursor import Cursor
from waterclock.delivery.events import (
    Acked,
    Deliver,
    Effect,
    LogRead,
    PartitionAssigned,
    PartitionReleased,
    PartitionRevoked,
    RangeReadable,
    Refuse,
    ReportDrained,
    RevocationCancelled,
)
from waterclock.delivery.groups import (
    Assign,
    CancelRevoke,
    CloseSession,
    Group,
    GroupEffect,
    HeartbeatReceived,
    MemberJoined,
    MemberLeft,
    MemberLost,
    PartitionDrained,
    PartitionsAdded,
    RefuseMember,
    Release,
    Revoke,
    SaveGeneration,
)
from waterclock.model.ids import Millis
from waterclock.model.sections import DeliveryConfig, GroupConfig

CONFIG = GroupConfig(session_timeout_ms=1_000, revoke_grace_ms=300, members_max=5)
NAMES = st.sampled_from("abcdef")


class GroupHistory(RuleBasedStateMachine):
    """The shell is written as a shell should be: it performs effects, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.saved = 0
        self.group = Group(CONFIG, partitions=4)
        self.cursors = [self.new_cursor() for _ in range(4)]
        self.owners: dict[int, tuple[str, int]] = {}
        self.ownerships: set[tuple[int, int]] = set()
        self.credits: dict[str, Credit] = {}
        self.held: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.revoked: dict[int, int] = {}

    def new_cursor(self) -> Cursor:
        cursor = Cursor(DeliveryConfig(ack_timeout_ms=100_000))
        cursor.handle(LogRead((RangeReadable(0, 50, 50),)), Millis(0))
        return cursor

    # The shell

    def tell(self, event) -> list[GroupEffect]:
        before = {p: owner for p, (owner, _) in self.owners.items()}
        members = self.group.members
        effects = self.group.handle(event, Millis(self.now_ms))
        self.check_movement(before, members)
        cancelled = {e.member for e in effects if isinstance(e, CancelRevoke)}
        revoked = {e.member for e in effects if isinstance(e, Revoke)}
        assert not cancelled & revoked, "one change undoes another"
        self.perform(effects)
        return effects

    def perform(self, effects: list[GroupEffect]) -> None:
        for effect in effects:
            match effect:
                case SaveGeneration(generation):
                    assert generation > self.saved
                    self.saved = generation
                case Release(partition, member, generation, is_counted):
                    assert self.owners.pop(partition) == (member, generation)
                    self.revoked.pop(partition, None)
                    self.ask(partition, PartitionReleased(generation, is_counted))
                case Revoke(partition, member, generation, deadline_ms):
                    assert self.owners[partition] == (member, generation)
                    self.revoked[partition] = deadline_ms
                    self.ask(partition, PartitionRevoked(generation))
                case CancelRevoke(partition, member, generation):
                    assert self.owners[partition] == (member, generation)
                    del self.revoked[partition]
                    self.ask(partition, RevocationCancelled(generation))
                case Assign(partition, member, generation):
                    assert partition not in self.owners, "two owners at a time"
                    assert (partition, generation) not in self.ownerships, "a generation twice"
                    assert generation == self.saved, "not saved before"
                    self.ownerships.add((partition, generation))
                    self.owners[partition] = (member, generation)
                    credit = self.credits.setdefault(member, self.new_credit(generation))
                    self.ask(partition, PartitionAssigned(generation, credit))
                case CloseSession(member):
                    self.credits.pop(member, None)
                case RefuseMember():
                    pass

    def new_credit(self, generation: int) -> Credit:
        return Credit(messages=6, bytes=1_000)

    def ask(self, partition: int, event) -> list[Effect]:
        effects = self.cursors[partition].handle(event, Millis(self.now_ms))
        for effect in effects:
            if isinstance(effect, Deliver):
                key = (partition, effect.generation)
                assert self.owners[partition][1] == effect.generation
                self.held.setdefault(key, []).extend(effect.ranges)
            elif isinstance(effect, ReportDrained):
                self.perform(
                    self.group.handle(
                        PartitionDrained(partition, effect.generation), Millis(self.now_ms)
                    )
                )
        return effects

    def check_movement(self, before, members) -> None:
        """What was owned by someone who is still there moves only for the sake of balance."""
        now = self.group.members
        if now == members or not now:
            return
        owned = [sum(before.get(p) == m for p in before) for m in now]
        least, larger = divmod(len(self.cursors), len(now))
        shares = [least + 1] * larger + [least] * (len(now) - larger)
        kept_most = sum(min(o, s) for o, s in zip(sorted(owned)[::-1], shares, strict=True))
        targets = [part.target for part in self.group._partitions]
        kept = sum(before.get(p) == target for p, target in enumerate(targets) if target)
        assert kept == kept_most, "a partition moves that need not"

    # What happens

    @rule(member=NAMES)
    def join(self, member):
        is_full = len(self.group.members) == 5 and member not in self.group.members
        effects = self.tell(MemberJoined(member))
        assert (effects == [RefuseMember(member, 5)]) == is_full

    @rule(member=NAMES, kind=st.sampled_from([MemberLeft, MemberLost]))
    def leave(self, member, kind):
        was_there = member in self.group.members
        effects = self.tell(kind(member))
        releases = [effect for effect in effects if isinstance(effect, Release)]
        gone = [r.is_counted for r in releases if r.member == member]
        assert set(gone) <= {kind is MemberLost}
        self.credits.pop(member, None)
        assert (effects == [RefuseMember(member)]) != was_there

    @rule(member=NAMES)
    def beat(self, member):
        expected = [] if member in self.group.members else [RefuseMember(member)]
        assert self.tell(HeartbeatReceived(member)) == expected

    @rule(passed_ms=st.sampled_from([10, 100, 300, 600]))
    def tick(self, passed_ms):
        self.now_ms += passed_ms
        effects = self.group.tick(Millis(self.now_ms))
        self.perform(effects)
        assert not [ms for ms in self.revoked.values() if ms <= self.now_ms], "grace is over"
        deadline = self.group.next_deadline()
        assert deadline is None or deadline > self.now_ms

    @rule(data=st.data(), count=st.integers(1, 20))
    def ack(self, data, count):
        if not self.held:
            return
        partition, generation = data.draw(st.sampled_from(sorted(self.held)))
        ranges = self.held.pop((partition, generation))
        owner = self.owners.get(partition)
        effects = self.ask(partition, Acked(generation, ranges[:count]))
        is_refused = any(isinstance(effect, Refuse) for effect in effects)
        assert is_refused == (owner is None or owner[1] != generation)
        if ranges[count:] and not is_refused:
            self.held.setdefault((partition, generation), []).extend(ranges[count:])

    @rule(count=st.integers(0, 6))
    def add_partitions(self, count):
        if len(self.cursors) < count:
            self.cursors += [self.new_cursor() for _ in range(count - len(self.cursors))]
        self.tell(PartitionsAdded(count))

    @rule()
    def restart(self):
        self.group = Group(CONFIG, partitions=len(self.cursors), generation=self.saved)
        for partition, (_, generation) in self.owners.items():
            self.cursors[partition].handle(
                PartitionReleased(generation, is_counted=False), Millis(self.now_ms)
            )
        self.owners.clear()
        self.revoked.clear()
        self.credits.clear()

    # What must hold

    @invariant()
    def the_group_agrees(self):
        self.group.check_invariants()
        owners = dict(enumerate(self.group.owners()))
        assert {p: owner for p, owner in owners.items() if owner} == self.owners
        targets = [part.target for part in self.group._partitions]
        owned = [owner and owner[0] for owner in owners.values()]
        if targets == owned:
            assert assign(self.group.members, owned) == owned, "a balanced group is left alone"
        for cursor in self.cursors:
            cursor.check_invariants()
