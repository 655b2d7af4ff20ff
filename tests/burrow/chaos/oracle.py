"""Judges a round by what its consumers wrote down and what the broker kept.

    lost            a message was neither finished nor dead-lettered although patience had no end
    no dead letter  one that can only be dead-lettered is not in the dead letter topic
    dead-lettered   one is there that could have been finished
    ahead           a commit was above a message that was not finished at that time
    map             the map of a commit named one finished that was not
    back            a commit was below an earlier one of its partition
    order           one was begun before an earlier one of its lane was finished, by anybody
    overlap         two of a lane were worked on at once
    repeated        one was begun again after it was finished, and no fault explains it
    uncovered       after a clean end of all, what is committed does not cover all that is finished
    ended           a consumer ended although nobody asked it to, or did not end well when asked
    slow            after the last fault a partition finished nothing for longer than RESUME_S

"uncovered" and "slow" are not judged on the mock cluster: it takes seconds for a rebalance, and
refuses commits from its beginning, where Kafka takes them from each member until it joins again.

A lane is a key (order "key") or a partition (order "partition"). The order is judged without any
allowance: whoever begins with a message has finished all earlier ones of its lane itself, or was
told by a commit that others had. Only these are allowed for rebalances:

- overlap, between two processes: if one of the two was paused before, or an outage had begun, for
  then it cannot know that it has lost the partition. Within one process it is never allowed.
- repeated: if whoever finished it first was killed or paused, or an outage had begun: then the
  commit could not be made; or if whoever repeats it was paused, and does not know yet. A consumer
  that left cleanly, or gave up a partition in a rebalance, has no such excuse.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from signal import SIGTERM

from tests.burrow.chaos.history import NEVER, CommitSeen, History, ProcessRun
from tests.burrow.chaos.journal import Position, What
from tests.burrow.chaos.plan import OUTAGES, PARTITIONS
from tests.kit import verdict as kit
from waterclock.burrow.core.offset_map import OffsetMaps

RESUME_S = 10.0
CLOCK_NS = 3_000_000
"""The broker's clock has milliseconds, and ours stands beside it."""
MAPS = OffsetMaps(units_max=4_095, text="base32768")
Lane = tuple[int, bytes]


@dataclass
class Verdict(kit.Verdict):
    """What was found and counted, and how soon it went on."""

    resume_s: float = 0.0
    """The longest that a partition finished nothing, from the end of the last fault on."""


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt at a message."""

    place: Position
    run: ProcessRun
    begun_ns: int
    ended_ns: int


class Oracle:
    """Looks at one round."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._verdict = Verdict()
        self._find = self._verdict.findings.add
        self._natures = {
            place: history.plan.nature(number) for place, number in history.log.items()
        }
        self._done_ns: dict[Position, int] = {}
        self._doer: dict[Position, ProcessRun] = {}
        for run in history.runs.values():
            for entry in run.entries:
                is_done = entry.what in (What.FINISHED, What.DEAD_LETTERED)
                if is_done and entry.at_ns < self._done_ns.get(entry.place, NEVER):
                    self._done_ns[entry.place], self._doer[entry.place] = entry.at_ns, run
        outages = (fault.begun_ns for fault in history.faults if fault.act in OUTAGES)
        self._outage_ns = min(outages, default=NEVER)

    def judge(self) -> Verdict:
        """Look at everything."""
        self._count()
        self._judge_losses()
        self._judge_commits()
        intervals = [span for run in self._history.runs.values() for span in _intervals(run)]
        self._judge_repeats(intervals)
        if self._history.plan.order != "none":
            self._judge_lanes(intervals)
        self._judge_ends()
        self._judge_progress()
        return self._verdict

    def _count(self) -> None:
        counts, history = self._verdict.counts, self._history
        counts["messages"] = len(history.log)
        counts["finished"] = len(self._done_ns)
        counts["commits"] = len(history.commits)
        counts["maps"] = sum(bool(commit.metadata) for commit in history.commits)
        counts["dead letters"] = len(history.dead_letters)
        counts["consumers"] = len(history.runs)
        for fault in history.faults:
            counts[fault.act.value] += 1
        for run in history.runs.values():
            for entry in run.entries:
                counts["failures"] += entry.what is What.FAILED

    # Nothing is lost

    def _judge_losses(self) -> None:
        dead = set(self._history.dead_letters)
        for place, number in self._history.log.items():
            nature = self._natures[place]
            if place not in self._done_ns:
                self._find("lost", f"message {number} at {place}")
            elif nature.is_poison and number not in dead:
                self._find("no dead letter", f"message {number} at {place}")
            elif not nature.is_poison and number in dead:
                self._find("dead-lettered", f"message {number} at {place}")

    # Commits

    def _judge_commits(self) -> None:
        by_partition: dict[int, list[CommitSeen]] = defaultdict(list)
        for commit in self._history.commits:
            by_partition[commit.partition].append(commit)
        for partition, commits in by_partition.items():
            offsets = sorted(offset for at, offset in self._history.log if at == partition)
            done_ns = [self._done_ns.get((partition, offset), NEVER) for offset in offsets]
            latest_ns = [0, *accumulate(done_ns, max)]
            highest = 0
            for commit in commits:
                now_ns = commit.at_ns + CLOCK_NS
                if latest_ns[bisect_left(offsets, commit.offset)] > now_ns:
                    self._find("ahead", f"{commit}")
                for offset in self._mapped(commit, offsets):
                    if self._done_ns.get((partition, offset), NEVER) > now_ns:
                        self._find("map", f"{offset} in {commit}")
                if commit.offset < highest:
                    self._find("back", f"{commit} after {highest}")
                highest = max(highest, commit.offset)
        self._judge_final()

    def _mapped(self, commit: CommitSeen, offsets: list[int]) -> Iterator[int]:
        end = offsets[-1] + 1 if offsets else 0
        for start, stop in MAPS.decode(commit.metadata, base=commit.offset, log_end=end):
            yield from offsets[bisect_left(offsets, start) : bisect_left(offsets, stop)]

    def _judge_final(self) -> None:
        if not self._history.is_drained or self._history.plan.kind == "mock":
            return
        for place in self._history.log:
            commit = self._history.final.get(place[0])
            if commit is None or place[1] >= commit.offset:
                covered = set() if commit is None else set(self._mapped(commit, [place[1]]))
                if place[1] not in covered:
                    self._find("uncovered", f"{place}, committed is {commit}")

    # What is done again

    def _judge_repeats(self, intervals: Iterable[Span]) -> None:
        for span in intervals:
            if self._done_ns.get(span.place, NEVER) >= span.begun_ns:
                continue
            doer = self._doer[span.place]
            known_ns = min(doer.troubled_ns, self._outage_ns, *span.run.paused_ns, NEVER)
            is_excused = known_ns < span.begun_ns
            self._verdict.counts["repeats"] += 1
            if not is_excused:
                text = f"{span.place} by {span.run.name}, finished by {doer.name}"
                self._find("repeated", text)

    # Lanes

    def _lane(self, place: Position) -> Lane | None:
        if self._history.plan.order == "partition":
            return place[0], b""
        key = self._natures[place].key
        return None if key is None else (place[0], key)

    def _judge_lanes(self, intervals: Iterable[Span]) -> None:
        lanes: dict[Lane, list[int]] = defaultdict(list)
        for place in sorted(self._natures):
            lane = self._lane(place)
            if lane is not None:
                lanes[lane].append(place[1])
        by_lane: dict[Lane, list[Span]] = defaultdict(list)
        for span in intervals:
            lane = self._lane(span.place) if span.place in self._natures else None
            if lane is not None:
                by_lane[lane].append(span)
        for lane, own in by_lane.items():
            self._judge_order(lane, lanes[lane], own)
            self._judge_overlaps(lane, sorted(own, key=lambda span: span.begun_ns))

    def _judge_order(self, lane: Lane, offsets: list[int], intervals: list[Span]) -> None:
        done_ns = [self._done_ns.get((lane[0], offset), NEVER) for offset in offsets]
        latest_ns = [0, *accumulate(done_ns, max)]
        for span in intervals:
            if latest_ns[bisect_left(offsets, span.place[1])] > span.begun_ns:
                self._find("order", f"{span.place} of {lane[1]!r} by {span.run.name}")

    def _judge_overlaps(self, lane: Lane, intervals: list[Span]) -> None:
        running: list[Span] = []
        for span in intervals:
            running = [other for other in running if other.ended_ns > span.begun_ns]
            for other in running:
                is_excused = other.run is not span.run and (
                    min(other.run.paused_ns + span.run.paused_ns + [self._outage_ns])
                    < span.begun_ns
                )
                self._verdict.counts["overlaps"] += 1
                if not is_excused:
                    text = f"{span.place} by {span.run.name}, {other.place} by {other.run.name}"
                    self._find("overlap", f"{lane[1]!r}: {text}")
            running.append(span)

    # Ends and progress

    def _judge_ends(self) -> None:
        for run in self._history.runs.values():
            has_begun = bool(run.entries)
            if run.killed_ns != NEVER or (run.code == -SIGTERM and not has_begun):
                continue  # who was asked while it was still starting need not end better
            if run.asked_ns > run.ended_ns or run.code != 0:
                self._find("ended", f"{run.name} with {run.code}: {run.output}")

    def _judge_progress(self) -> None:
        last_ns = max((fault.over_ns for fault in self._history.faults), default=0)
        for partition in range(PARTITIONS):
            done = sorted(
                at_ns
                for place, at_ns in self._done_ns.items()
                if place[0] == partition and at_ns > last_ns
            )
            # The longest wait, and not the first: one message that was in flight proves nothing.
            waits = [after - before for before, after in pairwise([last_ns, *done])]
            seconds = max(waits, default=NEVER) / 1e9
            self._verdict.resume_s = max(self._verdict.resume_s, seconds)
            if seconds > RESUME_S and self._history.plan.kind != "mock":
                self._find("slow", f"partition {partition} stood still for {seconds:.1f} s")


def _intervals(run: ProcessRun) -> Iterator[Span]:
    """Yield every attempt of a process; one that did not end ends with its process."""
    # A list: a partition that came back may be worked on while an old attempt still runs.
    begun: dict[Position, list[int]] = defaultdict(list)
    for entry in run.entries:
        if entry.what is What.BEGUN:
            begun[entry.place].append(entry.at_ns)
        elif entry.what in (What.FINISHED, What.FAILED):
            yield Span(entry.place, run, begun[entry.place].pop(0), entry.at_ns)
    for place, starts in begun.items():
        for begun_ns in starts:
            yield Span(place, run, begun_ns, min(run.killed_ns, run.ended_ns))
