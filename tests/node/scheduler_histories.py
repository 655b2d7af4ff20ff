"""Random histories of a partition and its scheduler, checked against a plain dict at every step.

Messages are scheduled, cancelled, moved and fired; segments are sealed and written anew; the clock
goes on, leaps and is set back; the process is restarted or killed, the power is cut. After each
step: the scheduler knows exactly the scheduled messages that the log says are open, none has fired
early, twice, or after its cancel was answered, and what fired did so in order.
"""

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.node.timed_partition import TimedPartition, int64s, ran
from tests.storage.stores import DEDUP, message
from waterclock.log.frame import FrameType
from waterclock.log.schema import decode
from waterclock.model.sections import ScheduleConfig
from waterclock.node.schedule.scheduler import ALREADY_FIRED, CANCELLED, DONE, UNKNOWN
from waterclock.storage.rewrite import Wanted, rewrites

STRETCHES_MS = [0, 150, 900, 5_000, 20_000, 3_600_000, 40 * 86_400_000]
STRETCH = st.sampled_from(STRETCHES_MS).flatmap(lambda most: st.integers(0, most))
PICKS = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=8)


class SchedulerHistories(RuleBasedStateMachine):
    """A scheduler and what it must know, side by side."""

    @initialize(
        hot_window_ms=st.sampled_from([1_000, 8_000, 86_400_000]), slice_=st.sampled_from([1, 50])
    )
    def begin(self, hot_window_ms: int, slice_: int) -> None:
        config = ScheduleConfig(hot_window_ms=hot_window_ms, fire_messages_max=slice_)
        self.partition = TimedPartition(config)
        self.open: dict[int, int] = {}
        self.durable_open: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.fired: set[int] = set()
        self.count = 0
        self.ids: dict[int, bytes | None] = {}
        self.appended_ms: dict[int, int] = {}

    @property
    def now_ms(self) -> int:
        return self.partition.clock.now_ms()

    def known(self, picks: list[int]) -> list[int]:
        """Turn numbers into offsets, most of them of open scheduled messages."""
        offsets = sorted(self.open)
        end = self.partition.store.end
        return [offsets[p % len(offsets)] if offsets and p % 9 else p % (end + 3) for p in picks]

    def flushed(self) -> None:
        self.durable_open = dict(self.open)

    # Scheduled messages

    @rule(delays=st.lists(STRETCH, min_size=1, max_size=12), is_durable=st.booleans())
    def publish(self, delays: list[int], is_durable: bool) -> None:
        now = self.now_ms
        messages = [message(self.count + i, due_ms=now + d) for i, d in enumerate(delays)]
        self.count += len(delays)
        offsets = self.partition.append(*messages)
        self.open |= {o: now + d for o, d in zip(offsets, delays, strict=True) if d > 0}
        self.ids |= {o: m.message_id for o, m in zip(offsets, messages, strict=True)}
        self.appended_ms |= dict.fromkeys(offsets, self.partition.store.log_time_ms)
        if is_durable:
            self.flush()

    @rule()
    def flush(self) -> None:
        self.partition.flush()
        self.flushed()

    def outcome(self, offset: int) -> set[int]:
        """Return what may be said of an offset that is asked about."""
        if offset in self.open:
            return {DONE}
        store = self.partition.store
        if offset not in self.ids:
            is_copy = store.reader.types(int64s([offset]))[0] == FrameType.FIRED
            return {ALREADY_FIRED, UNKNOWN} if is_copy else {UNKNOWN}
        outcome = CANCELLED if offset in self.cancelled else ALREADY_FIRED
        # What dedup remembers is remembered whole; of the rest, what is still there.
        is_remembered = self.appended_ms[offset] >= store.log_time_ms - DEDUP.window_ms
        return {outcome} if is_remembered else {outcome, UNKNOWN}

    @rule(picks=PICKS)
    def cancel(self, picks: list[int]) -> None:
        offsets = self.known(picks)
        expected = [self.outcome(offset) for offset in offsets]

        outcomes = self.partition.cancel(*offsets)

        for outcome, allowed, offset in zip(outcomes, expected, offsets, strict=True):
            assert outcome in allowed, (offset, outcome, allowed)
        self.cancelled |= {o for o in offsets if o in self.open}
        for offset in offsets:
            self.open.pop(offset, None)
        self.flushed_if(any(outcome != UNKNOWN for outcome in outcomes))

    def flushed_if(self, was_flushed: bool) -> None:
        if was_flushed:
            self.flushed()

    @rule(picks=PICKS, away=STRETCH, is_back=st.booleans())
    def reschedule(self, picks: list[int], away: int, is_back: bool) -> None:
        offsets = self.known(picks)
        start = max(0, self.now_ms + (-away if is_back else away))
        moves = [(o, start + (o * 7919) % 1_000) for o in offsets]
        expected = [self.outcome(offset) for offset in offsets]

        outcomes = self.partition.reschedule(*moves)

        for outcome, allowed, offset in zip(outcomes, expected, offsets, strict=True):
            assert outcome in allowed, (offset, outcome, allowed)
        self.open |= {o: due for o, due in moves if o in self.open}
        self.flushed_if(any(outcome != UNKNOWN for outcome in outcomes))

    @rule(is_durable=st.booleans(), is_tended=st.booleans())
    def fire(self, is_durable: bool, is_tended: bool) -> None:
        start = self.partition.store.end
        tick = self.partition.schedule.tick_ms
        bound = self.now_ms // tick * tick
        due = sorted((due, o) for o, due in self.open.items() if due <= bound)

        if is_tended:
            ran(self.partition.scheduler.tend())
        while self.partition.scheduler.firing.fire_slice():
            pass
        fired = self.just_fired(start)

        expected = [offset for _, offset in due]
        assert fired == (expected if is_tended else expected[: len(fired)])
        assert not self.cancelled & set(fired), "fired after its cancel was answered"
        assert not self.fired & set(fired), "fired twice"
        self.check_messages(start)
        for offset in fired:
            del self.open[offset]
        self.fired |= set(fired)
        if is_durable:
            self.flush()

    def check_messages(self, start: int) -> None:
        """What has fired is what was scheduled, with the due time it had in the end."""
        for frame in self.partition.store.reader.frames(start):
            if frame.header.type.name == "FIRED":
                for row in decode(frame.header, frame.body).to_pylist():
                    scheduled = row["scheduled_offset"]
                    assert row["message_id"] == self.ids[scheduled]
                    assert row["due_ms"] == self.open[scheduled] <= self.now_ms, "early"

    def just_fired(self, start: int) -> list[int]:
        """Return what the log says has fired from an offset on, flushed or not."""
        fired: list[int] = []
        for frame in self.partition.store.reader.frames(start):
            if frame.header.type.name == "FIRED":
                fired += self.partition.scheduled_in(frame)
        return fired

    # Time

    @rule(ahead=STRETCH)
    def clock_goes_on(self, ahead: int) -> None:
        self.partition.clock.advance(ahead)

    @rule(back=STRETCH)
    def clock_is_set_back(self, back: int) -> None:
        self.partition.clock.step(-back)

    @rule(ahead=STRETCH)
    def clock_is_set_forward(self, ahead: int) -> None:
        self.partition.clock.step(ahead)

    @rule(pick=st.integers(0, 1 << 30), off=st.sampled_from([-1, 0, 1, 99]))
    def clock_comes_close(self, pick: int, off: int) -> None:
        times = sorted(set(self.open.values()))
        if times:
            self.partition.clock.step(times[pick % len(times)] + off - self.now_ms)

    # Segments

    @rule(with_jobs=st.booleans())
    def roll(self, with_jobs: bool) -> None:
        self.partition.store.roll(self.now_ms)
        if with_jobs:
            self.partition.store.run_jobs()
        self.flushed()

    @rule()
    def rewrite(self) -> None:
        store = self.partition.store
        for job in rewrites(store, Wanted(keep_from=store.end), now_ms=self.now_ms):
            job.run()
            job.finish()
        self.flushed()

    @rule()
    def tend(self) -> None:
        ran(self.partition.scheduler.tend())

    @rule()
    def read_ahead(self) -> None:
        ran(self.partition.scheduler.firing.read_ahead())

    @rule()
    def save(self) -> None:
        self.partition.save()

    # Ends and beginnings

    @rule()
    def restart(self) -> None:
        self.partition.restart()
        self.flushed()

    @rule()
    def kill(self) -> None:
        self.partition.kill()
        self.flushed()

    @rule(seed=st.integers(0, 1 << 30))
    def cut_power(self, seed: int) -> None:
        dice = Random(seed)
        self.partition.cut_power(dice.randrange)
        found = self.partition.scheduled()
        known = self.open | self.durable_open
        assert set(found) <= set(known), "a scheduled message came from nowhere"
        ended = {o for o in self.durable_open if o not in self.open}
        assert set(self.durable_open) - ended <= set(found), "a scheduled message was lost"
        assert not self.cancelled & set(found), "an answered cancel was undone"
        self.open = found
        self.fired -= set(found)
        self.ids = {o: i for o, i in self.ids.items() if o < self.partition.store.end}
        self.flushed()

    @invariant()
    def scheduler_and_log_agree(self) -> None:
        if not hasattr(self, "partition"):
            return
        assert self.partition.scheduled() == self.open
        assert self.partition.pending() == self.open
        assert len(self.partition.scheduler) == len(self.open)
        self.partition.scheduler.timers.check_invariants()

    def teardown(self) -> None:
        """In the end everything fires, in order."""
        if hasattr(self, "partition"):
            last = max(self.open.values(), default=0)
            self.partition.clock.step(max(0, last + 1_000 - self.now_ms))
            self.fire(is_durable=True, is_tended=True)
            assert not self.open
