"""The core of a parallel consumer: told what happened, it says what to do; it waits for nothing.

How a shell uses it (every call is bulk; `now_ms` is a monotonic clock; one thread at a time):

    assigned([Assignment...])            a rebalance gave us partitions (incremental, or all)
    polled([Record...])                  the source read these; poll only while `room` > 0
    take(n) -> [Record...]               hand these to idle workers; do so whenever `has_ready`
    take_batches(n, size=k)              the same for functions of lists; a list goes to one worker
    finished([Record...])                the function returned
    failed([Record...], error)           it raised, or ran out of time: the engine retries or not
    dead_lettered([Record...])           answer to `WriteDeadLetters`
    dead_letters_failed([Record...])     the other answer
    revoking([name...])                  1. a rebalance takes these: nothing more is handed out;
                                         2. wait until in_flight(names) == 0, at most the grace;
    revoked([name...])                   3. returns the final CommitOffsets; late results are void
    lost([name...])                      the partitions are gone already: no commit
    committed(number, code=0, by_partition={})   answer to `CommitOffsets`, librdkafka's codes
    tick()                               call it at `next_deadline()`: retries, commits, pauses
    stop: revoking(engine.names()), wait, revoked(engine.names())

Promises, which the simulator in tests/burrow checks:

- A commit is never above the lowest record that is not finished, whatever happens.
- Every record that is polled is handed out until it is finished, given up, or its partition goes.
- order="key": of one key at most one record is in flight in this process, in offset order; also
  across a rebalance that gives a partition back while an old record of it still runs.
- Results of records from an earlier assignment change nothing.
- Memory: `queue_max` and one poll for each partition, `queue_bytes_max` and one poll for all; runs
  and not offsets for what is finished.

Duties of the shell: report every record that was taken as finished or failed, also after `revoked`
or `lost` (the result is void, but its key is free then); perform actions in their order; partitions
are assigned unpaused, so after a seek resume them.

Duties of the source: within an epoch offsets only grow (those that do not exist are skipped over);
a record at or below one that was polled is a repeat and is dropped. If the position was moved back
(a seek, an aborted transaction, a log that was reset), say `lost` and `assigned` with a new epoch.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from waterclock.burrow.core.backpressure import Backpressure
from waterclock.burrow.core.commits import Commits
from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.effects import Effect, Halt, WriteDeadLetters
from waterclock.burrow.core.failures import Failures
from waterclock.burrow.core.offset_map import OffsetMaps
from waterclock.burrow.core.partition import PartitionState, PartitionView, by_home
from waterclock.burrow.core.records import Assignment, Record, TopicPartition, by_name
from waterclock.burrow.core.retries import Retries, retry_delay_ms
from waterclock.burrow.core.work import HeldBytes, Work

_NO_CODES: Mapping[TopicPartition, int] = {}


class Engine:
    """Decides for one pool; one thread at a time may call it."""

    def __init__(self, config: EngineConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._maps = OffsetMaps(units_max=config.map_units_max, text=config.map_text)
        self._states: dict[TopicPartition, PartitionState] = {}
        self._held = HeldBytes()
        self._works: dict[TopicPartition, Work] = {}
        """Also of partitions that went while records of them were in flight."""
        self._line: deque[Work] = deque()
        """Partitions that have something ready, in turn."""
        self._retries = Retries()
        self.failures = Failures(config)
        self._commits = Commits(config, self._maps)
        self._backpressure = Backpressure(config, self._held)
        self.is_halted = False

    def __repr__(self) -> str:
        return f"<Engine {len(self._states)} partitions, {self.in_flight()} in flight>"

    # What a shell may ask

    @property
    def has_ready(self) -> bool:
        """Whether `take` would return something."""
        return bool(self._line) and not self.is_halted

    @property
    def room(self) -> int:
        """How many records to poll at most now. If 0, do not poll, unless everything is paused,
        which the engine asks for if it lasts. There is room again when half of it is free."""
        prefetch_max = self._config.prefetch_max
        ready = 0
        for work in self._line:
            ready += len(work.ready)
            if ready > prefetch_max // 2:
                return 0
        return 0 if self.is_halted else self._backpressure.count_for(prefetch_max - ready)

    def names(self) -> list[TopicPartition]:
        """Return the partitions that are ours."""
        return list(self._states)

    def in_flight(self, names: Iterable[TopicPartition] | None = None) -> int:
        """Return how many records workers hold, of these partitions or of all."""
        works = self._works
        chosen = works.values() if names is None else [works[n] for n in names if n in works]
        return sum(len(work.in_flight) for work in chosen)

    def views(self, now_ms: int) -> list[PartitionView]:
        """Return how the partitions do, for metrics and health."""
        for state in self._states.values():
            state.note(now_ms)
        return [state.view() for state in self._states.values()]

    @property
    def errors_in_a_row(self) -> int:
        """How many records were left with no success between them."""
        return self.failures.in_a_row

    # Partitions come and go

    def assigned(self, assignments: Sequence[Assignment], now_ms: int) -> list[Effect]:
        """Begin with partitions, where their last owner was."""
        for assignment in assignments:
            name = assignment.name
            if name in self._states:
                self._close(self._states[name])
            work = self._works.get(name)
            if work is None:
                work = self._works[name] = Work(self._config.order, self._held)
            self._states[name] = PartitionState(assignment, work, self._maps)
        self._backpressure.share_among(len(self._states))
        # They come unpaused; there may be no room for them, and the others' shares are smaller.
        return self._backpressure.settle(self._states.values())

    def revoking(self, names: Sequence[TopicPartition], now_ms: int) -> list[Effect]:
        """Hand out nothing more of these partitions; what is in flight may end."""
        for name in names:
            if name in self._states:
                self._drain(self._states[name])
        return []

    def revoked(self, names: Sequence[TopicPartition], now_ms: int) -> list[Effect]:
        """Give up partitions; the commit that is returned must be made before they are gone."""
        states = [self._states[name] for name in names if name in self._states]
        effects = self._commits.begin(states, is_final=True)
        for state in states:
            self._close(state)
        return effects

    def lost(self, names: Sequence[TopicPartition], now_ms: int) -> list[Effect]:
        """Forget partitions that another member may have already."""
        for name in names:
            if name in self._states:
                self._close(self._states[name])
        return []

    def _drain(self, state: PartitionState) -> None:
        self._retries.drop(state)
        state.drain()

    def _close(self, state: PartitionState) -> None:
        self._drain(state)
        state.close()
        del self._states[state.name]
        self._backpressure.share_among(len(self._states))
        self._forget_if_idle(state)

    def _forget_if_idle(self, state: PartitionState) -> None:
        if state.name not in self._states and not state.work.in_flight:
            self._works.pop(state.name, None)

    # Records come and are worked on

    def polled(self, records: Sequence[Record], now_ms: int) -> list[Effect]:
        """Take in what was read, in the order of each partition."""
        effects: list[Effect] = []
        held_bytes = self._held.total
        for name, group in by_name(records):
            state = self._states.get(name)
            if state is None or state.is_draining:
                continue
            state.work.offer(state.admit(group))
            self._line_up(state.work)
            if state.is_dirty:
                self._commits.changed(0, now_ms)
            if self._backpressure.has_reached(state):
                effects += self._backpressure.settle([state])
        self._backpressure.polled(len(records), self._held.total - held_bytes, now_ms)
        return effects

    def take(self, count: int) -> list[Record]:
        """Hand out up to so many records: each partition in its turn."""
        line = self._line
        taken: list[Record] = []
        is_serial = self._config.order == "partition"
        while line and count > 0 and not self.is_halted:
            # One round: the same for each, and what they leave is for the next round.
            share = 1 if is_serial else max(1, count // len(line))
            for _ in range(min(count, len(line))):
                work = line.popleft()
                work.is_lined_up = False
                got = work.take(share)
                taken += got
                count -= len(got)
                self._line_up(work)
        return taken

    def take_batches(self, count: int, *, size: int) -> list[list[Record]]:
        """Hand out up to so many lists of records; a list is for one worker, in its order."""
        if self._config.order != "partition":
            taken = self.take(count * size)
            return [taken[at : at + size] for at in range(0, len(taken), size)]
        batches: list[list[Record]] = []
        while self._line and len(batches) < count and not self.is_halted:
            work = self._line.popleft()
            work.is_lined_up = False
            got = work.take(size)
            if got:
                batches.append(got)
        return batches

    def _line_up(self, work: Work) -> None:
        if not work.is_lined_up and work.is_ready:
            work.is_lined_up = True
            self._line.append(work)

    def finished(self, records: Iterable[Record], now_ms: int) -> list[Effect]:
        """Count records as done. What was not in flight, or is of an earlier assignment, is not."""
        effects: list[Effect] = []
        count = 0
        for state, group in by_home(records):
            gone = state.work.release(group)
            if state.is_open:
                state.finish(gone)
                count += len(gone)
            self._released(state, effects)
        if count:
            self.failures.succeeded()
            self._commits.changed(count, now_ms)
            effects += self._commit_if_due(now_ms)
        if self._backpressure.is_full:
            effects += self._backpressure.see_room(self.room, self._states.values(), now_ms)
        return effects

    def failed(self, records: Iterable[Record], error: BaseException, now_ms: int) -> list[Effect]:
        """Retry records after a while, or give them up."""
        effects: list[Effect] = []
        for state, group in by_home(records):
            in_flight = state.work.in_flight
            group = [record for record in dict.fromkeys(group) if record in in_flight]
            if state.is_draining:
                state.work.release(group)
            else:
                final = [each for each in group if self.failures.is_final(each, error)]
                kept = set(group).difference(final)
                if final:
                    effects += self._give_up(state, final, error, now_ms)
                self._retry(state, [each for each in group if each in kept], now_ms)
            self._released(state, effects)
        return effects

    def _retry(self, state: PartitionState, records: list[Record], now_ms: int) -> None:
        if not records:
            return
        failures = max(record.attempt for record in records)
        for record in records:
            record.attempt += 1
        state.work.hold(records)
        due_ms = now_ms + retry_delay_ms(self._config, failures, self._rng)
        self._retries.add(due_ms, state, records)

    def _give_up(
        self, state: PartitionState, records: list[Record], error: BaseException, now_ms: int
    ) -> list[Effect]:
        if self._config.on_failure == "dlq":
            # They stay in flight, and keep their keys, until they are written.
            return [WriteDeadLetters(tuple(records), error)]
        state.given_up += len(state.work.release(records))
        # The next commit looks whether there is still a way on.
        state.is_dirty = True
        self._commits.changed(0, now_ms)
        limit = self._config.given_up_max
        if state.given_up > limit:
            return self._halt(f"{state.name}: more than given_up_max = {limit} records", error)
        if self._config.on_failure == "leave" and self.failures.left(len(records)):
            limit, count = self._config.errors_max, self.failures.in_a_row
            return self._halt(f"{count} records failed in a row, errors_max is {limit}", error)
        return []

    def _halt(self, reason: str, error: BaseException | None = None) -> list[Effect]:
        if self.is_halted:
            return []
        self.is_halted = True
        return [Halt(reason, error)]

    def dead_lettered(self, records: Iterable[Record], now_ms: int) -> list[Effect]:
        """Count records as done that stand in the dead letter topic now."""
        return self.finished(records, now_ms)

    def dead_letters_failed(
        self, records: Iterable[Record], error: BaseException, now_ms: int
    ) -> list[Effect]:
        """Try later to write records to the dead letter topic; they are not done until then."""
        for state, group in by_home(records):
            group = [record for record in dict.fromkeys(group) if record in state.work.in_flight]
            if state.is_draining:
                state.work.release(group)
                self._forget_if_idle(state)
            elif group:
                state.work.hold(group)
                due_ms = now_ms + self._config.commit_retry_ms
                self._retries.add(due_ms, state, group, error)
        return []

    def _released(self, state: PartitionState, effects: list[Effect]) -> None:
        """Go on after records of a partition are no longer in flight."""
        # Also of a closed one: the next assignment may have waited for its last record.
        self._line_up(state.work)
        present = self._states.get(state.name)
        if present is None:
            self._forget_if_idle(state)
        elif present.is_paused:
            effects += self._backpressure.settle([present])

    # Commits and time

    def committed(
        self,
        number: int,
        now_ms: int,
        *,
        code: int = 0,
        by_partition: Mapping[TopicPartition, int] = _NO_CODES,
    ) -> list[Effect]:
        """Take note of the result of `CommitOffsets`: a code for all, or for each partition."""
        effects = self._commits.answered(number, code, by_partition, now_ms)
        if any(isinstance(effect, Halt) for effect in effects):
            self.is_halted = True
        return effects

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what the time asks for: retries, a commit, pausing a pool that is full."""
        effects: list[Effect] = []
        for retry in self._retries.pop_due(now_ms):
            work = retry.home.work
            if retry.dead_letter_error is None:
                work.again(retry.records)
                self._line_up(work)
            else:
                work.resume(retry.records)
                effects.append(WriteDeadLetters(tuple(retry.records), retry.dead_letter_error))
        effects += self._commit_if_due(now_ms)
        effects += self._backpressure.see_room(self.room, self._states.values(), now_ms)
        return effects

    def _commit_if_due(self, now_ms: int) -> list[Effect]:
        due_ms = self._commits.due_ms
        if due_ms is None or due_ms > now_ms:
            return []
        states = [state for state in self._states.values() if not state.is_draining]
        effects = self._commits.begin(states, is_final=False)
        for state in states:
            state.note(now_ms)
            effects += self._press(state)
        return effects

    def _press(self, state: PartitionState) -> list[Effect]:
        """Pause a partition whose offset map is nearly full, until the gap closes."""
        # Reading again what a restored map leaves open can only make the map smaller.
        is_new = state.polled_end is not None and state.polled_end > state.restored_end
        limit = self._config.map_pressure_percent
        state.is_pressed = is_new and state.map_usage * 100 >= limit
        if state.is_pressed and not state.work.held:
            reason = f"{state.name}: {state.given_up} records were given up, and what is finished"
            return self._halt(f"{reason} between them does not fit into a commit")
        return self._backpressure.settle([state]) if state.is_pressed or state.is_paused else []

    def next_deadline(self) -> int | None:
        """Return when to call `tick`; None if nothing waits for a time."""
        times = (
            self._retries.next_due_ms,
            self._commits.due_ms,
            self._backpressure.deadline_ms(self.room) if self._states else None,
        )
        return min((time for time in times if time is not None), default=None)

    def check_invariants(self) -> None:
        """Fail if the parts contradict each other, or something could be forgotten."""
        for name, state in self._states.items():
            assert state.is_open
            assert state.work is self._works[name]
            state.check_invariants()
        for name, work in self._works.items():
            assert name in self._states or work.in_flight
            assert work.is_lined_up or not work.is_ready, f"nobody would take from {name}"
            assert work.is_lined_up == (work in self._line)
        assert self._held.total == sum(work.held_bytes for work in self._works.values())
        retrying = sum(work.retrying for work in self._works.values())
        assert len(self._retries) <= retrying, f"{self._retries!r} for {retrying} records"
