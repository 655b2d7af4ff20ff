"""The oracle: what of a round's history breaks a promise. Pure.

- Stream source: everything that Redis confirmed is in an output stream or in the dead stream, once.
- Pub/sub source: the same, except what was published while a subscription may have been down, by a
  fault that breaks subscriptions; and then a dispatcher must have counted a gap, or the messages.
- No two epochs: once a higher one has written to a stream, no lower one does; a worker that
  follows a higher one accepts nothing of a lower.
- What nobody can process is dead-lettered and not written; what can is not dead-lettered, unless it
  was handed
  out as often as is allowed.
- Nothing hangs: in the end nothing is pending, and nobody stumbled over an error of its own.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.dispatch.chaos.history import Entry, History, Performed
from tests.dispatch.chaos.plan import Fault
from tests.kit import verdict as kit

POISON = frozenset({"spoiled", "refuse", "fail", "crash"})
BACK_S = 1.5
"""How long after its cause a subscription may still be down: those who lost it try again at once,
and find out only after a silence."""

BREAKS_SUBSCRIPTIONS = frozenset(
    {Fault.REDIS_RESTART, Fault.REDIS_FAILOVER, Fault.REDIS_PAUSE, Fault.CUT_LEADER_REDIS,
     Fault.CUT_STANDBY_REDIS}
)  # fmt: skip
HINDERS_TAKE_OVER = BREAKS_SUBSCRIPTIONS | {Fault.STANDBY_KILL, Fault.LEADER_STOP}
LEADER_GOES = frozenset({Fault.LEADER_KILL, Fault.LEADER_STOP, Fault.LEADER_PAUSE})
HOT_S = 1.0
"""Who has listened for so long has heard a marker, and all that is not stored by now."""
BEFORE_S = 0.3
"""What came so shortly before a leader went may not have been stored by it."""
TAKEN_OVER = (Fault.LEADER_KILL, Fault.LEADER_PAUSE)


@dataclass(slots=True)
class TakeOver:
    """How long after its leader was gone a group had another."""

    fault: str
    lease_s: float
    seconds: float


@dataclass
class Verdict(kit.Verdict):
    """What was found and counted, and how long take-overs and the end took."""

    take_overs: list[TakeOver] = field(default_factory=list)
    settle_s: float = 0.0
    """From the end of the last fault until nothing was left to do."""


def judge(history: History, *, errors: Iterable[str] = ()) -> Verdict:
    """Return what is to be said of a round; `errors` are lines of the logs that show a bug."""
    verdict = Verdict()
    written, dead_lettered = _places(history)
    _judge_presence(history, verdict, written, dead_lettered)
    _judge_repeats(verdict, written, dead_lettered)
    _judge_dead_letters(history, verdict, written)
    _judge_epochs(history.entries, verdict)
    _judge_workers(history, verdict)
    if not history.is_settled:
        verdict.findings.add("unsettled", "messages were still pending when patience ended")
    for line in errors:
        verdict.findings.add("error", line)
    _count(history, verdict)
    _measure(history, verdict)
    return verdict


def _places(history: History) -> tuple[Counter[int], Counter[int]]:
    written = Counter(entry.n for entry in history.entries)
    dead_lettered = Counter(dead_letter.n for dead_letter in history.dead_letters)
    return written, dead_lettered


def _judge_presence(
    history: History, verdict: Verdict, written: Counter[int], dead_lettered: Counter[int]
) -> None:
    missing = [
        each for each in history.published
        if each.is_sure and not written[each.n] and not dead_lettered[each.n]
    ]  # fmt: skip
    is_stream = history.plan.source_kind == "stream"
    windows = [] if is_stream else _windows(history)
    allowed = 0
    for each in missing:
        if any(start <= each.to_s and each.from_s <= end for start, end in windows):
            allowed += 1
        else:
            verdict.findings.add(
                "lost", f"message {each.n} at {each.from_s:.3f}, {_steps(history)}"
            )
    verdict.counts["lost in a gap"] = allowed
    if allowed and not (_counted(history, "gaps") or _counted(history, "lost") >= allowed):
        verdict.findings.add(
            "uncounted", f"{allowed} messages are missing, and nobody counted a gap"
        )
    known = {each.n for each in history.published}
    for n in (written.keys() | dead_lettered.keys()) - known:
        verdict.findings.add("invented", f"message {n} was never published")


def _windows(history: History) -> list[tuple[float, float]]:
    """Return when a subscription may have been down, or nobody listened who could take over."""
    return [
        (each.from_s - BEFORE_S, each.to_s + BACK_S)
        for each in history.performed
        if each.step.fault in BREAKS_SUBSCRIPTIONS or _is_without_hot_standby(history, each)
    ]


def _is_without_hot_standby(history: History, fault: Performed) -> bool:
    """Say whether a leader went that was alone, but for those who had just come."""
    if fault.step.fault not in LEADER_GOES:
        return False
    for name, lines in history.journals.items():
        said = [line["at"] for line in lines if line["what"] == "counts"]
        if name.startswith("dispatcher") and name != fault.target and said:
            is_long_here = said[0] < fault.from_s - HOT_S
            is_still_here = said[-1] > fault.from_s
            if is_long_here and is_still_here:
                return False
    return True


def _judge_repeats(verdict: Verdict, written: Counter[int], dead_lettered: Counter[int]) -> None:
    for n, count in written.items():
        if count > 1:
            verdict.findings.add("written twice", f"message {n}, {count} times")
    for n, count in dead_lettered.items():
        if count > 1:
            verdict.findings.add("dead-lettered twice", f"message {n}, {count} times")
    for n in written.keys() & dead_lettered.keys():
        verdict.findings.add("written and dead-lettered", f"message {n}")


def _judge_dead_letters(history: History, verdict: Verdict, written: Counter[int]) -> None:
    kinds = {each.n: each.kind for each in history.published}
    for dead_letter in history.dead_letters:
        is_worn = dead_letter.deliveries >= history.plan.deliveries_max
        if kinds.get(dead_letter.n) not in POISON and not is_worn:
            verdict.findings.add(
                "dead-lettered too soon", f"message {dead_letter.n}: {dead_letter.reason}"
            )
    for n in written:
        if kinds.get(n) in POISON:
            verdict.findings.add("poison written", f"message {n}, {kinds[n]}")


def _judge_epochs(entries: Iterable[Entry], verdict: Verdict) -> None:
    highest: dict[int, int] = {}
    for entry in entries:
        before = highest.get(entry.stream, 0)
        if entry.epoch < before:
            said = f"message {entry.n} by {entry.by}: {entry.epoch} after {before}"
            verdict.findings.add("two epochs", said)
        highest[entry.stream] = max(before, entry.epoch)


def _judge_workers(history: History, verdict: Verdict) -> None:
    for name, lines in history.journals.items():
        followed = 0
        for line in lines:
            if line["what"] == "followed":
                followed = max(followed, line["epoch"])
            elif line["what"] == "accepted" and line["epoch"] < followed:
                said = f"{name}: {line['epoch']}, and follows {followed}"
                verdict.findings.add("old epoch accepted", said)


def _counted(history: History, name: str) -> int:
    """Return what all processes counted together, as they last told."""
    total = 0
    for lines in history.journals.values():
        said = [line for line in lines if line["what"] == "counts"]
        total += said[-1].get(name, 0) if said else 0
    return total


def _steps(history: History) -> str:
    return ", ".join(
        f"{each.step.fault.value} {each.from_s:.3f}-{each.to_s:.3f}" for each in history.performed
    )


def _count(history: History, verdict: Verdict) -> None:
    counts = verdict.counts
    counts["published"] = len(history.published)
    counts["unsure"] = sum(not each.is_sure for each in history.published)
    counts["written"] = len(history.entries)
    counts["dead-lettered"] = len(history.dead_letters)
    counts["epochs"] = len(history.leader_epochs)
    for name in (
        "redelivered", "repeats", "refused_frames", "refused_messages", "refused_writes", "stale",
        "gaps", "lost", "bad_connections",
    ):  # fmt: skip
        counts[name] = _counted(history, name)
    for each in history.performed:
        counts[each.step.fault.value] += 1
    kinds = {each.n: each.kind for each in history.published}
    counts["bystanders"] = sum(kinds.get(each.n) not in POISON for each in history.dead_letters)


def _measure(history: History, verdict: Verdict) -> None:
    ends = [each.to_s for each in history.performed]
    ends += [each.to_s for each in history.published[-1:]]
    verdict.settle_s = max(0.0, history.ended_s - max(ends, default=history.ended_s))
    lease_s = history.plan.lease_ms / 1_000
    for each in history.performed:
        if each.step.fault not in TAKEN_OVER or _is_hindered(history, each, lease_s):
            continue
        after = [
            leader_epoch
            for leader_epoch in history.leader_epochs
            if leader_epoch.epoch > each.epoch
        ]
        if after and (each.step.fault is Fault.LEADER_KILL or each.to_s - each.from_s > lease_s):
            seconds = after[0].at_s - each.from_s
            verdict.take_overs.append(TakeOver(each.step.fault.value, lease_s, seconds))


def _is_hindered(history: History, fault: Performed, lease_s: float) -> bool:
    """Say whether something else went on that keeps others from taking over."""
    end_s = fault.from_s + lease_s + 1.0
    return any(
        each is not fault
        and each.step.fault in HINDERS_TAKE_OVER | set(TAKEN_OVER)
        and each.from_s <= end_s
        and each.to_s + BACK_S >= fault.from_s
        for each in history.performed
    )
