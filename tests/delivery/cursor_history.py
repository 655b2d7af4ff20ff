"""Random histories of a cursor, checked against a model that knows every message by itself."""

import copy
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from waterclock.delivery.credits import Credit
from waterclock.delivery.cursor import Cursor
from waterclock.delivery.events import (
    Acked,
    DeadLettered,
    Deliver,
    Effect,
    Event,
    Extended,
    LogRead,
    LogTrimmed,
    Nacked,
    PartitionAssigned,
    PartitionReleased,
    PartitionRevoked,
    RangeReadable,
    RangeSkipped,
    Reason,
    Refuse,
    Rejected,
    ReportDrained,
    RevocationCancelled,
    StaleGeneration,
    UnknownLease,
    WriteDeadLetters,
)
from waterclock.model.ids import Millis
from waterclock.model.sections import DeliveryConfig

CONFIG = DeliveryConfig(
    ack_timeout_ms=1_000,
    lease_ms_max=4_000,
    max_retries=1,
    retry_delay_ms=100,
    retry_delay_ms_max=100,
    unacked_max=8,
    runs_max=10,
)
SIZE = 10
GONE = "gone"


@dataclass
class Message:
    """One offset. `place` is ahead, leased, waiting, dead, done or gone (nothing to deliver)."""

    place: str
    failed: int = 0
    due_min_ms: int = 0
    due_max_ms: int = 0
    reason: Reason | None = None


def offsets_of(ranges) -> list[int]:
    return [offset for start, end in ranges for offset in range(start, end)]


class CursorHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.config = CONFIG
        self.cursor = Cursor(CONFIG)
        self.now_ms = 0
        self.log: list[Message] = []
        self.read_end = 0
        self.generation = 0
        self.is_owned = False
        self.is_draining = False
        self.credit = Credit(messages=0, bytes=0)
        self.saved = (self.cursor.encode(), copy.deepcopy(self.log))
        self.dead: dict[int, tuple[Reason, int]] = {}  # that must be reported now
        self.unwritten: set[int] = set()

    # The shell

    def tell(self, event: Event) -> list[Effect]:
        return self.perform(self.cursor.handle(event, Millis(self.now_ms)))

    def perform(self, effects: list[Effect]) -> list[Effect]:
        order = [Refuse, WriteDeadLetters, Deliver, ReportDrained]
        assert [type(e) for e in effects] == sorted((type(e) for e in effects), key=order.index)
        for effect in effects:
            if isinstance(effect, WriteDeadLetters):
                for offset in offsets_of(effect.ranges):
                    assert self.dead.pop(offset) == (effect.reason, effect.attempts)
                    self.unwritten.add(offset)
            elif isinstance(effect, Deliver):
                self.receive(effect)
            elif isinstance(effect, ReportDrained):
                assert effect.generation == self.generation
                assert self.is_draining
                assert not self.held()
        assert not self.dead, "a message that failed too often was not reported"
        return effects

    def receive(self, effect: Deliver) -> None:
        assert self.is_owned
        assert not self.is_draining
        assert effect.generation == self.generation
        for offset in offsets_of(effect.ranges):
            message = self.log[offset]
            assert message.place in ("ahead", "waiting"), f"{offset} was {message.place}"
            assert effect.attempt == message.failed + 1 <= CONFIG.max_retries + 1
            if message.place == "ahead":
                assert offset == self.in_place("ahead")[0], "not in log order"
            assert message.due_min_ms <= self.now_ms, "too early"
            message.place = "leased"
            message.due_min_ms = message.due_max_ms = effect.deadline_ms
        assert len(self.held()) <= min(self.credit.messages_max, CONFIG.unacked_max)
        assert len(self.held()) == 1 or len(self.held()) * SIZE <= self.credit.bytes_max

    # The model

    def in_place(self, place: str) -> list[int]:
        return [at for at, m in enumerate(self.log[: self.read_end]) if m.place == place]

    def held(self) -> list[int]:
        return self.in_place("leased")

    def fail(self, offset: int, reason: Reason, *, retry_at_ms: int | None = None) -> None:
        message = self.log[offset]
        message.failed += 1
        if message.failed > CONFIG.max_retries:
            self.die(offset, reason)
            return
        message.place = "waiting"
        message.due_min_ms = self.now_ms + 100
        message.due_max_ms = self.now_ms + 120
        if retry_at_ms is not None:
            message.due_min_ms = message.due_max_ms = max(retry_at_ms, self.now_ms)

    def die(self, offset: int, reason: Reason) -> None:
        self.log[offset].place = "dead"
        self.log[offset].reason = reason
        self.dead[offset] = (reason, self.log[offset].failed)

    def let_go(self, *, is_counted: bool) -> None:
        held = sorted(self.held())
        for offset in held:
            if is_counted and self.config.count_lost_owners and offset == held[0]:
                self.fail(offset, Reason.OWNER_LOST)
            else:
                self.log[offset] = Message("waiting", self.log[offset].failed)
        self.is_owned = self.is_draining = False

    # What happens

    @initialize(count=st.integers(0, 12))
    def begin(self, count):
        """Begin in the midst of things: histories are short."""
        self.append(count + 1, False)
        self.assign(count, 10 * count)
        self.read(count + 1, 0)

    @rule(count=st.integers(1, 9), is_gone=st.booleans())
    def append(self, count, is_gone):
        self.log += [Message(GONE if is_gone else "ahead") for _ in range(count)]

    @precondition(lambda self: self.read_end < len(self.log))
    @rule(count=st.integers(1, 12), overlap=st.integers(0, 2))
    def read(self, count, overlap):
        end = min(len(self.log), self.read_end + count)
        ranges: list[RangeReadable | RangeSkipped] = []
        for at in range(max(0, self.read_end - overlap), end):
            is_gone = self.log[at].place == GONE
            # Never of one piece, so that a frame is more than a range and a range more than one.
            if ranges and isinstance(ranges[-1], RangeSkipped) == is_gone and at % 5:
                ranges[-1] = replace(ranges[-1], end=at + 1)
            else:
                kind = RangeSkipped if is_gone else RangeReadable
                ranges.append(kind(at, at + 1))
        for at in range(self.read_end, end):
            message = self.log[at]
            if message.place == "dead":
                self.dead[at] = (message.reason or Reason.NACKED, message.failed)
        self.read_end = end
        sized = [
            replace(r, size_bytes=(r.end - r.start) * SIZE) if isinstance(r, RangeReadable) else r
            for r in ranges
        ]
        self.tell(LogRead(tuple(sized)))

    @rule(start=st.integers(0, 30), count=st.integers(1, 5))
    def lose_from_log(self, start, count):
        end = min(start + count, self.read_end)
        for at in range(start, end):
            if self.log[at].place != "done":
                self.log[at].place = GONE
            self.unwritten.discard(at)
        if start < end:
            self.tell(LogRead((RangeSkipped(start, end),)))

    @rule(start=st.integers(0, 30))
    def trim(self, start):
        """Have retention take the beginning of the log, read or not, but for what is held."""
        start = min(start, len(self.log))
        untaken = []
        for at in range(start):
            message = self.log[at]
            if message.place in ("ahead", "waiting", "dead", GONE):
                untaken.append(at)
            # Whoever writes its dead letter holds a dead one; after a restart, once it was read.
            is_unread = message.place == "dead" and at >= self.read_end
            if message.place in ("ahead", "waiting") or is_unread:
                message.place = GONE
        gaps = {at for at in untaken if at in self.cursor._tracker}
        assert offsets_of(self.cursor.untaken(start)) == [at for at in untaken if at not in gaps]
        self.read_end = max(self.read_end, start)
        self.tell(LogTrimmed(start))

    @rule(messages=st.integers(0, 12), size=st.integers(0, 100))
    def assign(self, messages, size):
        if self.is_owned:
            self.let_go(is_counted=False)
        self.generation += 1
        self.is_owned = True
        self.credit = Credit(messages=messages, bytes=size)
        self.tell(PartitionAssigned(self.generation, self.credit))

    @rule(messages=st.integers(0, 12), size=st.integers(0, 100))
    def set_credit(self, messages, size):
        if self.is_owned:
            self.credit.set(messages=messages, bytes=size)
            self.tick(0)

    @rule(is_cancelled=st.booleans(), age=st.integers(0, 1))
    def revoke(self, is_cancelled, age):
        kind = RevocationCancelled if is_cancelled else PartitionRevoked
        if age == 0 and self.is_owned:
            was_draining, self.is_draining = self.is_draining, not is_cancelled
            effects = self.tell(kind(self.generation))
            is_reported = ReportDrained(self.generation) in effects
            assert is_reported == (self.is_draining and not was_draining and not self.held())
        else:
            assert self.tell(kind(self.generation - 1)) == []

    @rule(count_lost_owners=st.booleans())
    def configure(self, count_lost_owners):
        self.config = replace(CONFIG, count_lost_owners=count_lost_owners)
        self.cursor.configure(self.config)

    @rule(is_counted=st.booleans(), age=st.integers(0, 1))
    def release(self, is_counted, age):
        if age == 0 and self.is_owned:
            self.let_go(is_counted=is_counted)
        self.tell(PartitionReleased(self.generation - age, is_counted))

    @rule(
        data=st.data(),
        kind=st.sampled_from(["ack", "ack", "ack", "nack", "return", "reject", "extend"]),
        is_stale=st.sampled_from([False, False, False, False, True]),
    )
    def answer(self, data, kind, is_stale):
        held = self.held()
        span = st.tuples(st.integers(0, self.read_end + 2), st.integers(-1, 4))
        if held:
            span |= st.tuples(st.sampled_from(held), st.integers(1, 4))
        drawn = data.draw(st.lists(span, min_size=1, max_size=4))
        ranges = [(start, start + count) for start, count in drawn]
        retry_at_ms = data.draw(st.none() | st.integers(-100, 500).map(lambda t: t + self.now_ms))
        generation = self.generation - is_stale
        events: dict[str, Event] = {
            "ack": Acked(generation, ranges),
            "nack": Nacked(generation, ranges, retry_at_ms),
            "return": Nacked(generation, ranges, retry_at_ms, is_counted=False),
            "reject": Rejected(generation, ranges),
            "extend": Extended(generation, ranges, self.now_ms + 2_000),
        }
        event = events[kind]
        if is_stale or not self.is_owned:
            current = self.generation if self.is_owned else None
            assert self.tell(event) == [Refuse(StaleGeneration(generation, current))]
            return
        mine = [at for at in dict.fromkeys(offsets_of(ranges)) if at in held]
        strange = set(offsets_of(ranges)) - set(held)
        for at in mine:
            self.settle(at, kind, retry_at_ms)
        effects = self.tell(event)
        problems = [e.problem for e in effects if isinstance(e, Refuse)]
        unknown = {
            at for p in problems if isinstance(p, UnknownLease) for at in offsets_of(p.ranges)
        }
        # An offset named twice is unknown the second time, unless it is still held.
        assert strange <= unknown <= strange | (set() if kind == "extend" else set(mine))
        if len(offsets_of(ranges)) == len(mine) and all(start < end for start, end in ranges):
            assert problems == []

    def settle(self, at, kind, retry_at_ms):
        message = self.log[at]
        if kind == "ack":
            message.place = "done"
        elif kind == "nack":
            self.fail(at, Reason.NACKED, retry_at_ms=retry_at_ms)
        elif kind == "return":
            low, high = (100, 120) if retry_at_ms is None else (retry_at_ms - self.now_ms,) * 2
            low, high = self.now_ms + max(low, 0), self.now_ms + max(high, 0)
            self.log[at] = Message("waiting", message.failed, low, high)
        elif kind == "reject":
            message.failed += 1
            self.die(at, Reason.REJECTED)
        else:
            message.due_min_ms = message.due_max_ms = self.now_ms + 2_000

    @precondition(lambda self: self.unwritten)
    @rule(data=st.data())
    def write_dead_letters(self, data):
        written = data.draw(st.sets(st.sampled_from(sorted(self.unwritten)), min_size=1))
        for at in written:
            self.log[at].place = "done"
        self.unwritten -= written
        self.tell(DeadLettered(tuple((at, at + 1) for at in written)))

    @rule(passed_ms=st.sampled_from([0, 50, 100, 500, 1_000, 3_000]))
    def tick(self, passed_ms):
        self.now_ms += passed_ms
        for at in self.held():
            if self.log[at].due_max_ms <= self.now_ms:
                self.fail(at, Reason.TIMED_OUT)
        self.perform(self.cursor.tick(Millis(self.now_ms)))
        self.check_nothing_is_held_back()

    @rule()
    def save(self):
        self.saved = (self.cursor.encode(), copy.deepcopy(self.log))

    @rule(is_saved_now=st.booleans(), passed_ms=st.sampled_from([0, 500]))
    def restart(self, is_saved_now, passed_ms):
        if is_saved_now:
            self.save()
        data, then = self.saved
        # The log does not forget; what happened to the group's messages since, the group does.
        for at, message in enumerate(self.log):
            past = then[at] if at < len(then) else Message("ahead")
            if message.place != GONE:
                self.log[at] = copy.copy(past)
                if past.place == "leased" or past.due_max_ms == 0:
                    place = "waiting" if past.failed else "ahead"
                    is_settled = past.place in ("done", "dead")
                    self.log[at] = replace(
                        past if is_settled else Message(place, past.failed),
                        reason=past.reason,
                    )
        self.cursor = Cursor.decode(data, self.config)
        assert self.cursor.encode() == data
        self.read_end = self.cursor.read_from
        self.is_owned = self.is_draining = False
        self.unwritten.clear()
        self.now_ms += passed_ms

    # What must hold

    def check_nothing_is_held_back(self) -> None:
        credit, held = self.credit, len(self.held())
        if not self.is_owned or self.is_draining or held >= CONFIG.unacked_max:
            return
        if held >= credit.messages_max or (held + 1) * SIZE > credit.bytes_max:
            return
        waiting = [self.log[at] for at in self.in_place("waiting")]
        assert not [m for m in waiting if m.due_max_ms <= self.now_ms], "a retry is held back"
        outstanding = len(waiting) + held + len(self.in_place("dead"))
        assert outstanding >= CONFIG.runs_max or not self.in_place("ahead"), "held back"

    @invariant()
    def the_cursor_agrees(self):
        self.cursor.check_invariants()
        undone = [at for at, m in enumerate(self.log) if m.place not in ("done", GONE)]
        lowest = min([*undone, len(self.log)])
        # What was done before a restart, or has nothing to deliver, may lie behind what was read.
        assert min(lowest, self.read_end) <= self.cursor.committed <= lowest
        assert self.cursor.unacked == len(self.held())
        assert not self.is_owned or self.credit.held_messages == len(self.held())
        assert not self.is_owned or self.credit.held_bytes == len(self.held()) * SIZE
        assert self.cursor._tracker.run_count <= CONFIG.runs_max
        self.check_deadline()

    def check_deadline(self) -> None:
        timed = [self.log[at] for at in (*self.held(), *self.in_place("waiting"))]
        deadline = self.cursor.next_deadline()
        coming = [m for m in timed if m.due_min_ms > self.now_ms]
        if coming:
            assert deadline is not None
            assert deadline <= min(m.due_max_ms for m in coming)
        assert deadline is None or deadline >= min(m.due_min_ms for m in timed)

    def teardown(self):
        """Whatever happened, a good consumer gets everything that is left."""
        if self.read_end < len(self.log):
            self.read(len(self.log), 0)
        self.assign(100, 10_000)
        for _ in range(4 * len(self.log) + 4):
            if self.unwritten:
                written, self.unwritten = sorted(self.unwritten), set()
                for at in written:
                    self.log[at].place = "done"
                self.tell(DeadLettered(tuple((at, at + 1) for at in written)))
            held = self.held()
            for at in held:
                self.log[at].place = "done"
            self.tell(Acked(self.generation, [(at, at + 1) for at in held]))
            self.tick(1_000)
        assert self.cursor.committed == len(self.log), "a message was lost"
        assert (self.cursor.unacked, self.cursor.waiting) == (0, 0)
