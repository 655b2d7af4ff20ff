"""The verdict on a round of topics: that of the checkers of all runs, of groups, and of clocks.

A node whose clock was put an hour ahead fires an hour early by the clock of the round, and rightly
so. What may have been written by such a clock is judged by that clock: the frame says what it
showed. All else is judged by the clock of the round, as if no clock had been set; if that of the
machine was, by as much less strictly.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tests.cluster.chaos.topics.plan import Fault, Role
from tests.cluster.chaos.topics.record import RoundRecord, undelivered
from tests.cluster.history.checkers import (
    Bounds,
    Run,
    changed,
    counts_of,
    fired_of,
    judge,
    run_of,
)
from tests.kit.verdict import Findings, Verdict

CLOCK_MS = 5
"""Due times are rounded to milliseconds, on this side and on that of the node."""
HEAL_MS = 30_000
AWAY_MS = 100
"""After so long a node that was killed or stopped writes nothing more."""
SET_MS = 2_000
"""After so long a process has heard that its clock is right again."""


def verdict_on(record: RoundRecord, *, errors: Sequence[str] = ()) -> Verdict:
    """Judge a round; `errors` are what logs say of things that nobody planned."""
    window = window_of(record)
    # Those of a clock that is ahead are judged below.
    ahead_ms = 0 if window is None else record.plan.clock_ms
    bounds = Bounds(clock_ms=CLOCK_MS + record.stepped_ms + ahead_ms, heal_ms=HEAL_MS)
    findings = judge(record.events, bounds)
    run = run_of(record.events, bounds)
    check_groups(record, run, findings)
    check_all(record, run, findings)
    if window is not None:
        record.counts += check_clocks(record, run, window, findings)
    for error in errors:
        findings.add("unforeseen", error)
    for change in record.forgotten:
        findings.add("forgotten", change)
    for late in filter(None, record.late):
        findings.add("not healed", late)
    counts = counts_of(run)
    counts.update(record.counts)
    counts["delivered"] = len(record.delivered)
    counts["lag ms"] = record.lag_ms
    if record.stepped_ms > CLOCK_MS:
        counts["machine's clock set by ms"] = record.stepped_ms
    if outages := record.outages_ms():
        counts["outage ms"] = max(outages)
    for performed in record.performed:
        counts[performed.step.fault.value] += 1
    return Verdict(findings, counts)


class Window(NamedTuple):
    """When a clock was ahead, by the clock of the round."""

    from_ms: int
    to_ms: int


def window_of(record: RoundRecord) -> Window | None:
    """Return when a clock was ahead; None: none was. One that is behind fires nothing early."""
    ahead = [each for each in record.performed if each.step.clock_ms > 0]
    if not ahead:
        return None
    return Window(min(each.from_ms for each in ahead), max(each.to_ms for each in ahead) + SET_MS)


def check_clocks(record: RoundRecord, run: Run, window: Window, findings: Findings) -> Counter[str]:
    """See that nothing fired early by the clock that wrote it; return how much was judged how."""
    later: dict[str, int] = {}
    """Behind these offsets all was written after the clock was right again."""
    for sent in run.published.values():
        # What only the leader had may be lost, and something older come to its offset.
        if sent.offset is None or sent.acks == "leader":
            continue
        if sent.at_ms > window.to_ms:
            later[sent.partition] = min(sent.offset, later.get(sent.partition, sent.offset))
    counts: Counter[str] = Counter()
    for message, fired in fired_of(run).items():
        sender = run.published.get(message)
        if sender is None or sender.due_ms is None:
            continue
        dues, _, _ = changed(sender.due_ms, run.changed.get(message, []))
        is_after = fired.offset >= later.get(fired.partition, fired.offset + 1)
        is_right = fired.at_ms < window.from_ms or is_after
        at_ms = fired.at_ms if is_right else record.written_ms[fired.partition, fired.offset]
        whose = "the round's" if is_right else "the node's own"
        counts[f"fired by {whose} clock"] += 1
        if at_ms < min(dues) - CLOCK_MS - record.stepped_ms:
            said = f"{message}: at {at_ms} by {whose} clock, due at {sorted(dues)}"
            findings.add("early fire", said)
    return counts


def check_groups(record: RoundRecord, run: Run, findings: Findings) -> None:
    """See that each group was given all there is, and nothing else."""
    at = {(poll.partition, row.offset): row.message for poll, row in run.rows()}
    for each in record.delivered:
        there = at.get((each.partition, each.offset))
        if there != each.message:
            said = f"{each.message} to {each.group} from {each.partition} at {each.offset}"
            findings.add("delivered from elsewhere", f"{said}, where {there} is")
    for group, messages in undelivered(record).items():
        for message in sorted(messages):
            findings.add("undelivered", f"{message} to {group}: {run.published.get(message)}")


def check_all(record: RoundRecord, run: Run, findings: Findings) -> None:
    """See that nothing was acknowledged as being on all replicas while one of them was away."""
    for away in record.performed:
        if away.step.fault not in (Fault.KILL, Fault.PAUSE) or away.step.role is Role.ETCD:
            continue
        from_ms, to_ms = away.from_ms + AWAY_MS, away.from_ms + away.step.for_ms
        for sent in run.published.values():
            is_within = sent.until_ms is not None and from_ms <= sent.at_ms <= sent.until_ms < to_ms
            if sent.acks == "all" and is_within:
                findings.add("acked without all", f"{sent}, while {away.name} was away")
