"""The verdict on a round of topics: that of the checkers of all runs, and of groups."""

from collections.abc import Sequence

from tests.cluster.chaos.topics.record import RoundRecord, undelivered
from tests.cluster.history.checkers import Bounds, Run, counts_of, judge, run_of
from tests.kit.verdict import Findings, Verdict

CLOCK_MS = 5
"""Due times are rounded to milliseconds, on this side and on that of the node."""
HEAL_MS = 30_000


def verdict_on(record: RoundRecord, *, errors: Sequence[str] = ()) -> Verdict:
    """Judge a round; `errors` are what logs say of things that nobody planned."""
    # A node whose clock is an hour ahead fires an hour early, and rightly so.
    bounds = Bounds(clock_ms=CLOCK_MS + record.plan.clock_ms, heal_ms=HEAL_MS)
    findings = judge(record.events, bounds)
    run = run_of(record.events, bounds)
    check_groups(record, run, findings)
    for error in errors:
        findings.add("unforeseen", error)
    for late in filter(None, record.late):
        findings.add("not healed", late)
    counts = counts_of(run)
    counts.update(record.counts)
    counts["delivered"] = len(record.delivered)
    counts["lag ms"] = record.lag_ms
    if outages := record.outages_ms():
        counts["outage ms"] = max(outages)
    for performed in record.performed:
        counts[performed.step.fault.value] += 1
    return Verdict(findings, counts)


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
