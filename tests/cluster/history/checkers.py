"""Which guarantees of replicated topics a run broke. Pure: events in, findings out.

    lost write            an acknowledged message is not in the log that was read in the end
    false ack             the offset that an answer named holds another message
    duplicate             an id is stored, or has fired, at two offsets
    inconsistent offsets  two messages were read at one offset of a partition
    nonmonotonic poll     a reader that reads on was given an offset that it had passed
    skipped poll          a reader was led past a message that others were given there
    invented              a message was read that nobody sent, or that was refused
    early fire            a scheduled message was read before its due time
    fired after cancel    a message was read as fired whose cancel was acknowledged
    unfired               a scheduled message had not fired long after it was due
    two leaders           two replicas led a partition under one epoch
    copies differ         two replicas hold different frames as committed at one offset
    stuck                 a request had no answer long after all faults were over

The words, and most of the checks, are Jepsen's for Kafka and for Chronos.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.cluster.history.events import (
    Changed,
    Copied,
    Dropped,
    Ended,
    Event,
    Healed,
    Led,
    Polled,
    Published,
    Row,
)
from tests.kit.verdict import Findings


class Bounds(NamedTuple):
    """What a run allows for."""

    clock_ms: int = 0
    """How far the clock of a node that fires may be before that of the run."""
    heal_ms: int = 10_000
    """After so long without faults everything has an answer, and all that is due has fired."""


class Run(NamedTuple):
    """The events by kind."""

    published: dict[str, Published]
    changed: dict[str, list[Changed]]
    polled: list[Polled]
    led: list[Led]
    copied: list[Copied]
    dropped: dict[str, int]
    """Where what retention has not taken begins in each partition."""
    healed_ms: int
    ended_ms: int
    bounds: Bounds

    def rows(self) -> Iterable[tuple[Polled, Row]]:
        """Yield all that was read."""
        return ((poll, row) for poll in self.polled for row in poll.rows)

    def places(self) -> dict[str, dict[str, set[int]]]:
        """Return where each message was read: stored, or fired."""
        found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for _, row in self.rows():
            found["fired" if row.kind == "fired" else "stored"][row.message].add(row.offset)
        return found


def run_of(events: Iterable[Event], bounds: Bounds = Bounds()) -> Run:  # noqa: B008 - frozen
    """Sort the events of one run."""
    run = Run({}, defaultdict(list), [], [], [], defaultdict(int), 0, 0, bounds)
    for event in events:
        match event:
            case Published(message=message):
                assert message not in run.published, message
                run.published[message] = event
            case Changed(message=message):
                run.changed[message].append(event)
            case Polled():
                run.polled.append(event)
            case Led():
                run.led.append(event)
            case Copied():
                run.copied.append(event)
            case Dropped(partition=partition, end=end):
                run.dropped[partition] = max(end, run.dropped[partition])
            case Healed(at_ms=at_ms):
                run = run._replace(healed_ms=at_ms)
            case Ended(at_ms=at_ms):
                run = run._replace(ended_ms=at_ms)
    for changes in run.changed.values():
        changes.sort(key=lambda change: change.at_ms)
    run.polled.sort(key=lambda poll: poll.at_ms)
    return run


def judge(events: Iterable[Event], bounds: Bounds = Bounds()) -> Findings:  # noqa: B008 - frozen
    """Return all that is wrong with a run."""
    findings = Findings()
    run = run_of(events, bounds)
    for check in CHECKS:
        check(run, findings)
    return findings


def check_writes(run: Run, findings: Findings) -> None:
    """See that what was acknowledged is there, once, and where the answer said."""
    places = run.places()
    stored = places["stored"]
    at: dict[tuple[str, int], str] = {}
    for poll, row in run.rows():
        if row.kind != "fired":
            at.setdefault((poll.partition, row.offset), row.message)
    for message, sent in run.published.items():
        if sent.outcome != "acked" or sent.acks == "leader":
            continue
        is_dropped = sent.offset is not None and sent.offset < run.dropped[sent.partition]
        if message not in stored and not is_dropped:
            findings.add("lost write", f"{message} of {sent.partition}, acked at {sent.offset}")
        if sent.offset is None:
            continue
        holder = at.get((sent.partition, sent.offset))
        if holder is not None and holder != message:
            said = f"{message} of {sent.partition}: acked at {sent.offset}, where {holder} is"
            findings.add("false ack", said)
    for word, found in places.items():
        for message, offsets in found.items():
            if len(offsets) > 1:
                findings.add("duplicate", f"{message} {word} at {sorted(offsets)}")
    for message in set(stored) | set(places["fired"]):
        sender = run.published.get(message)
        if sender is None or sender.outcome == "refused":
            findings.add("invented", f"{message}: {sender}")


def check_offsets(run: Run, findings: Findings) -> None:
    """See that an offset has one message, for everybody and for ever."""
    seen: dict[tuple[str, int], tuple[Row, Polled]] = {}
    for poll, row in run.rows():
        first, before = seen.setdefault((poll.partition, row.offset), (row, poll))
        if first != row:
            said = f"{poll.partition} at {row.offset}: {first.message} ({first.kind}) by "
            said += f"{before.node} at {before.at_ms}, {row.message} ({row.kind}) by {poll.node}"
            findings.add("inconsistent offsets", f"{said} at {poll.at_ms}")


def check_readers(run: Run, findings: Findings) -> None:
    """See that readers go on, and miss nothing that is there for others."""
    known: dict[str, set[int]] = defaultdict(set)
    for poll, row in run.rows():
        known[poll.partition].add(row.offset)
    reached: dict[tuple[str, str], int] = {}
    for poll in run.polled:
        of = poll.reader, poll.partition
        offsets = [row.offset for row in poll.rows]
        is_behind = min([poll.offset, poll.next_offset]) < reached.get(of, 0)
        is_outside = (
            bool(offsets) and not poll.offset <= offsets[0] <= offsets[-1] < poll.next_offset
        )
        if is_behind or is_outside or offsets != sorted(set(offsets)):
            said = f"{poll.reader} of {poll.partition} at {poll.at_ms}: from {poll.offset}, "
            findings.add("nonmonotonic poll", f"{said}reached {reached.get(of)}, got {offsets}")
        reached[of] = max(reached.get(of, 0), poll.next_offset)
        missed = known[poll.partition].intersection(range(poll.offset, poll.next_offset))
        missed.difference_update(offsets)
        if missed and max(missed) >= run.dropped[poll.partition]:
            said = f"{poll.reader} of {poll.partition} by {poll.node} at {poll.at_ms}"
            findings.add("skipped poll", f"{said}: not {sorted(missed)[:5]}")


class Fired(NamedTuple):
    """When a scheduled message was first read as one that is due, and where."""

    at_ms: int
    partition: str
    offset: int


def fired_of(run: Run) -> dict[str, Fired]:
    """Return what has fired."""
    fired: dict[str, Fired] = {}
    for poll, row in run.rows():
        sender = run.published.get(row.message)
        # One that was due when it was stored is stored as any other.
        is_due = row.kind == "data" and sender is not None and sender.due_ms is not None
        if row.kind == "fired" or is_due:
            found = Fired(poll.at_ms, poll.partition, row.offset)
            fired[row.message] = min(found, fired.get(row.message, found))
    return fired


def check_fires(run: Run, findings: Findings) -> None:
    """See that scheduled messages fire at their time, and not once they are cancelled."""
    fired = fired_of(run)
    for message, sent in run.published.items():
        if sent.due_ms is None:
            if message in fired:
                findings.add("early fire", f"{message} was not scheduled, and fired")
            continue
        dues, may_be_cancelled, is_cancelled = changed(sent.due_ms, run.changed.get(message, []))
        at_ms = fired[message].at_ms if message in fired else None
        if at_ms is not None and is_cancelled:
            findings.add("fired after cancel", f"{message}: read at {at_ms}")
        elif at_ms is not None and at_ms < min(dues) - run.bounds.clock_ms:
            findings.add("early fire", f"{message}: read at {at_ms}, due at {sorted(dues)}")
        latest_ms = max(run.healed_ms, *dues) + run.bounds.clock_ms + run.bounds.heal_ms
        is_kept = sent.outcome == "acked" and sent.acks != "leader"
        is_open = is_kept and not may_be_cancelled
        if at_ms is None and is_open and latest_ms <= run.ended_ms:
            findings.add("unfired", f"{message} of {sent.partition}, due at {sorted(dues)}")


def changed(due_ms: int, changes: list[Changed]) -> tuple[set[int], bool, bool]:
    """Return the due times a message may have, whether it may be cancelled, and whether it is."""
    dues, may_be_cancelled = {due_ms}, False
    for change in changes:
        if change.outcome == "refused":
            continue
        if change.due_ms is not None:
            dues = {change.due_ms} | (dues if change.outcome != "acked" else set())
            continue
        may_be_cancelled = True
        if change.outcome == "acked":
            return dues, True, True
    return dues, may_be_cancelled, False


def check_leaders(run: Run, findings: Findings) -> None:
    """See that an epoch has one leader."""
    leaders: dict[tuple[str, int], set[str]] = defaultdict(set)
    for led in run.led:
        leaders[led.partition, led.epoch].add(led.replica)
    for (partition, epoch), replicas in leaders.items():
        if len(replicas) > 1:
            findings.add("two leaders", f"{partition} in epoch {epoch}: {sorted(replicas)}")


def check_copies(run: Run, findings: Findings) -> None:
    """See that all replicas hold the same."""
    frames: dict[tuple[str, int], tuple[str, str]] = {}
    for copied in run.copied:
        for offset, digest in copied.frames:
            at = copied.partition, offset
            replica, known = frames.setdefault(at, (copied.replica, digest))
            if known != digest:
                said = f"{copied.partition} at {offset}: {replica} and {copied.replica}"
                findings.add("copies differ", said)


def check_answers(run: Run, findings: Findings) -> None:
    """See that whatever was asked is answered once the faults are over."""
    asked: list[Published | Changed] = [*run.published.values()]
    asked += [change for changes in run.changed.values() for change in changes]
    for each in asked:
        latest_ms = max(run.healed_ms, each.at_ms) + run.bounds.heal_ms
        until_ms = run.ended_ms if each.until_ms is None else each.until_ms
        if until_ms > latest_ms or (each.until_ms is None and run.ended_ms >= latest_ms):
            findings.add("stuck", f"{each}; healed at {run.healed_ms}")


Check = Callable[[Run, Findings], None]
CHECKS: tuple[Check, ...] = (
    check_writes,
    check_offsets,
    check_readers,
    check_fires,
    check_leaders,
    check_copies,
    check_answers,
)


def counts_of(run: Run) -> Counter[str]:
    """Return how much there was to judge."""
    counts: Counter[str] = Counter()
    for sent in run.published.values():
        counts[f"publishes {sent.outcome}"] += 1
    for changes in run.changed.values():
        for change in changes:
            word = "cancels" if change.due_ms is None else "reschedules"
            counts[f"{word} {change.outcome}"] += 1
    counts["fired"] = len(run.places()["fired"])
    counts["polls"] = len(run.polled)
    counts["leaders"] = len(run.led)
    return counts
