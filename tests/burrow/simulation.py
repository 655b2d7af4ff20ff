"""Whole groups of engines under seeds: rebalances, kills, pauses, commit errors, poison, slow work.

Everything is drawn from one seed, so a seed is a story that can be told again:

    python -m tests.burrow.simulation --seed 17

A story: members work while faults happen; then the faults end, and all that can be finished must be
within PROGRESS_MS; then everybody stops cleanly, and a new member must find nothing to do again.
The judge (fake_group.py) looks at every beginning and every commit on the way.
"""

import argparse

from tests.burrow.fake_group import FakeGroup, Judge, Message, Position, Violation
from tests.burrow.stories import Story
from waterclock.burrow.core.effects import (
    CommitOffsets,
    Effect,
    Halt,
    Pause,
    Resume,
    WriteDeadLetters,
)
from waterclock.burrow.core.engine import Engine
from waterclock.burrow.core.failures import PermanentError
from waterclock.burrow.core.records import Assignment, Record, TopicPartition

PROGRESS_MS = 10_000
POLL_MAX = 20
VALUE_BYTES = 50


class Member:
    """One process: an engine, its workers, and a client of the group."""

    def __init__(self, number: int, world: "World") -> None:
        self.number = number
        self.world = world
        self.engine = Engine(world.story.config, world.rng)
        self.positions: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.paused: set[int] = set()
        self.inbox: list[list[Record]] = []
        """What was read and not yet told, in order."""
        self.running: list[tuple[int, list[Record]]] = []
        """When each busy worker ends, and with what."""
        self.draining: tuple[int, set[int]] | None = None
        self.given_up: list[WriteDeadLetters] = []
        self.frozen_until_ms = 0
        self.is_stopping = False

    def turn(self, now_ms: int) -> None:
        """Do what a shell does in a turn of its loop."""
        # A process that was frozen may finish much before it hears what happened meanwhile.
        steps = [self._hear, self._work]
        self.world.rng.shuffle(steps)
        for step in steps:
            step(now_ms)
        self._poll(now_ms)
        self._hand_out(now_ms)
        deadline_ms = self.engine.next_deadline()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self._perform(self.engine.tick(now_ms), now_ms)
            self._hand_out(now_ms)
        self.engine.check_invariants()
        limit = self.world.story.config.queue_max + POLL_MAX
        for view in self.engine.views(now_ms):
            if view.in_flight + view.waiting + view.retrying > limit + len(self.running) * 3:
                raise Violation(f"{view.name} holds more than {limit}")

    # The group

    def _hear(self, now_ms: int) -> None:
        group = self.world.group
        membership = group.members.get(self.number)
        if membership is None:
            self._perform(self.engine.lost(self.engine.names(), now_ms), now_ms)
            self.draining = None
            if not self.is_stopping:
                group.join(self.number, now_ms)
            return
        membership.heard_ms = now_ms
        if self.draining is None and group.is_rebalancing and not membership.has_joined:
            self.draining = (now_ms, set(membership.to_revoke))
            names = [TopicPartition("t", each) for each in sorted(membership.to_revoke)]
            self._perform(self.engine.revoking(names, now_ms), now_ms)
        if self.draining is not None:
            self._drain(now_ms)
        elif membership.to_assign is not None:
            self._assign(membership.to_assign, now_ms)
            membership.to_assign = None

    def _drain(self, now_ms: int) -> None:
        assert self.draining is not None
        since_ms, partitions = self.draining
        names = [TopicPartition("t", each) for each in sorted(partitions)]
        if self.engine.in_flight(names) and now_ms - since_ms < self.world.story.grace_ms:
            return
        self.draining = None
        self._perform(self.engine.revoked(names, now_ms), now_ms)
        if self.number in self.world.group.members:
            self.world.group.gave_up(self.number, partitions)

    def _assign(self, partitions: set[int], now_ms: int) -> None:
        group, assignments = self.world.group, []
        for partition in sorted(partitions):
            commit = group.committed.get(partition)
            self.epochs[partition] = self.epochs.get(partition, 0) + 1
            self.positions[partition] = commit.offset if commit else 0
            self.paused.discard(partition)
            assignments.append(
                Assignment(
                    TopicPartition("t", partition),
                    self.epochs[partition],
                    commit.offset if commit else None,
                    commit.metadata if commit else "",
                    group.log_end(partition),
                )
            )
        self._perform(self.engine.assigned(assignments, now_ms), now_ms)

    def stop(self, now_ms: int) -> None:
        """Begin a clean stop: hand out nothing more, let what runs end."""
        self.is_stopping = True
        self._perform(self.engine.revoking(self.engine.names(), now_ms), now_ms)

    def has_stopped(self, now_ms: int) -> bool:
        """Say whether a clean stop is through, and make its last commit."""
        if self.engine.in_flight():
            return False
        self._perform(self.engine.revoked(self.engine.names(), now_ms), now_ms)
        self.world.group.leave(self.number)
        return True

    # Records

    def _poll(self, now_ms: int) -> None:
        rng = self.world.rng
        if self.is_stopping:
            return
        room = self.engine.room
        if room and not self.inbox and rng.random() < 0.8:
            for name in self.engine.names():
                if name.partition not in self.paused and room > 0:
                    room -= self._fetch(name.partition, min(room, POLL_MAX))
        # What was read may be told late, and most likely so while a rebalance keeps everybody busy.
        if rng.random() < (0.1 if self.world.group.is_rebalancing else 0.8):
            inbox, self.inbox = self.inbox, []
            for batch in inbox:
                self._perform(self.engine.polled(batch, now_ms), now_ms)

    def _fetch(self, partition: int, count: int) -> int:
        log, position = self.world.story.logs[partition], self.positions[partition]
        epoch = self.epochs[partition]
        offsets = [offset for offset in log if offset >= position][:count]
        if offsets:
            self.positions[partition] = offsets[-1] + 1
            self.inbox.append(
                [
                    Record("t", partition, o, log[o].key, bytes(o * 7 % VALUE_BYTES), (), 0, epoch)
                    for o in offsets
                ]
            )
        return len(offsets)

    def _hand_out(self, now_ms: int) -> None:
        idle = self.world.story.workers - len(self.running)
        size = self.world.story.batch_size
        if idle <= 0:
            return
        if size == 1:
            batches = [[record] for record in self.engine.take(idle)]
        else:
            batches = self.engine.take_batches(idle, size=size)
        for batch in batches:
            self._begin(batch, now_ms)

    def _begin(self, batch: list[Record], now_ms: int) -> None:
        running = {_place(each) for _, records in self.running for each in records}
        self.world.judge.begin([_place(record) for record in batch], running)
        work_ms = sum(self.world.message(record).work_ms for record in batch)
        self.running.append((now_ms + work_ms, batch))

    def _work(self, now_ms: int) -> None:
        judge = self.world.judge
        ended = [records for until_ms, records in self.running if until_ms <= now_ms]
        self.running = [each for each in self.running if each[0] > now_ms]
        finished: list[Record] = []
        for records in ended:
            for record in records:
                message, place = self.world.message(record), _place(record)
                if message.is_poison or judge.attempts[place] <= message.failures:
                    error = PermanentError("poison") if message.is_poison else OSError("flaky")
                    self._perform(self.engine.failed([record], error, now_ms), now_ms)
                    if message.is_poison and self.world.story.config.on_failure != "dlq":
                        judge.given_up.add(place)
                else:
                    judge.finished.add(place)
                    finished.append(record)
        if finished:
            self._perform(self.engine.finished(finished, now_ms), now_ms)
        self._write_dead_letters(now_ms)

    def _write_dead_letters(self, now_ms: int) -> None:
        given_up, self.given_up = self.given_up, []
        for dead_letter_error in given_up:
            if self.world.has_faults and self.world.rng.random() < 0.3:
                effects = self.engine.dead_letters_failed(
                    dead_letter_error.records, OSError("no topic"), now_ms
                )
            else:
                self.world.judge.finished.update(
                    _place(record) for record in dead_letter_error.records
                )
                effects = self.engine.dead_lettered(dead_letter_error.records, now_ms)
            self._perform(effects, now_ms)

    def _perform(self, effects: list[Effect], now_ms: int) -> None:
        for effect in effects:
            match effect:
                case Pause(names):
                    self.paused.update(name.partition for name in names)
                case Resume(names):
                    self.paused.difference_update(name.partition for name in names)
                case CommitOffsets(number, commits):
                    code = self.world.group.commit(self.number, commits)
                    self._perform(self.engine.committed(number, now_ms, code=code), now_ms)
                case WriteDeadLetters():
                    self.given_up.append(effect)
                case Halt(reason):
                    raise Violation(f"halted: {reason}")


def _place(record: Record) -> Position:
    return record.partition, record.offset


class World:
    """All members, their group, and the time."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.rng = story.rng
        self.judge = Judge(story.logs, story.config.order)
        self.group = FakeGroup(self.rng, self.judge, is_eager=story.is_eager)
        self.members: list[Member] = []
        self.now_ms = 0
        self.count = 0
        self.has_faults = False

    def message(self, record: Record) -> Message:
        return self.story.logs[record.partition][record.offset]

    def add(self) -> None:
        self.count += 1
        self.members.append(Member(self.count, self))
        self.group.join(self.count, self.now_ms)

    def step(self) -> None:
        """Let some time pass, and everybody do something."""
        self.now_ms += self.rng.randint(1, 30)
        self.group.expire(self.now_ms)
        self.rng.shuffle(self.members)
        for member in list(self.members):
            if member.frozen_until_ms > self.now_ms:
                continue
            member.turn(self.now_ms)
            if member.is_stopping and member.has_stopped(self.now_ms):
                self.members.remove(member)

    def disturb(self) -> None:
        """Perhaps do something to somebody."""
        rng, is_gentle = self.rng, self.story.is_gentle
        if not self.members or rng.random() < 0.03:
            if len(self.members) < 4:
                self.add()
            return
        victim, dice = rng.choice(self.members), rng.random()
        if dice < 0.02:
            victim.stop(self.now_ms)
        elif is_gentle:
            return
        elif dice < 0.04:
            self.members.remove(victim)  # killed: the group learns of it by its silence
        elif dice < 0.07:
            victim.frozen_until_ms = self.now_ms + rng.randint(10, 1_000)
        elif dice < 0.15:
            self.group.commit_codes += rng.choices([27, 22, 25, 7, 12, -195], k=rng.randint(1, 3))

    def run(self) -> None:
        """Tell the whole story; Violation if a guarantee is broken."""
        self.add()
        self.has_faults = not self.story.is_gentle
        for _ in range(self.story.steps):
            self.disturb()
            self.step()
        self.has_faults = False
        self.group.commit_codes.clear()
        for member in self.members:
            member.frozen_until_ms = 0
        if not any(not member.is_stopping for member in self.members):
            self.add()
        self._finish()
        self._restart()

    def _finish(self) -> None:
        end_ms = self.now_ms + PROGRESS_MS
        while self.judge.missing or not self._is_quiet():
            if self.now_ms > end_ms:
                engines = [member.engine.views(self.now_ms) for member in self.members]
                raise Violation(f"no progress: {self.judge.missing[:5]} are missing; {engines}")
            self.step()

    def _is_quiet(self) -> bool:
        """Say whether every partition has an owner who has read it and has nothing left to do."""
        members = self.group.members
        idle = {
            view.name.partition
            for member in self.members
            for view in member.engine.views(self.now_ms)
            if member.number in members
            and view.name.partition in members[member.number].owned
            and (view.polled_end or 0) >= self.group.log_end(view.name.partition)
            and not (view.in_flight or view.waiting or view.retrying)
        }
        return len(idle) == len(self.story.logs) and not self.group.is_rebalancing

    def _restart(self) -> None:
        """Stop everybody cleanly, begin anew, and see whether anything is done again."""
        for member in self.members:
            member.stop(self.now_ms)
        while self.members:
            self.step()
        before = len(self.judge.repeats)
        self.add()
        for _ in range(50):
            self.step()
        if self.story.config.map_units_max == 4_095:
            repeats = self.judge.repeats if self.story.is_gentle else self.judge.repeats[before:]
            if repeats:
                raise Violation(f"done again after a clean stop: {repeats[:5]}")


def run(seed: int) -> None:
    """Tell the story of a seed."""
    try:
        World(Story.of(seed)).run()
    except AssertionError as error:
        raise Violation(f"seed {seed}: {error}") from error


def main() -> None:
    """Tell one story, or many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        run(seed)
    print(f"{arguments.count} stories from seed {arguments.seed}: every promise kept")


if __name__ == "__main__":
    main()
