"""The oracle: what of a round's history breaks a promise. Pure.

- No receiver waits past its timeout, but for a little, whatever happens to the nodes behind the one
  it asks. One that asks a node which is stopped itself is counted from when that goes on.
- No message goes to two receivers that compete, and none that the cluster says it did not take.
- A message in memory that was acknowledged is lost only with a node that had it when it was killed,
  or on the way to a receiver: its connection broke while it waited, or its node was silent for so
  long that the others gave up on it. Nothing else loses one: no join, no leave, and no ring is lost
  in a partition or a pause.
- A stored stream loses nothing, has each message once, and its positions are 1, 2, 3 without holes.
- After the last fault all nodes agree on all nodes again.
- Most of what is sent to a node that runs is acknowledged, faults or not: of a cluster that does
  nothing, all the above is true.

Who had a stream is reckoned from who was there: in each era, as some node may have seen it, the
hash ring of its nodes names one. While the ring changes it may be the one before or after.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tests.cluster.chaos.history import Era, History, Outcome, Performed, Poll, Sent
from tests.cluster.chaos.plan import Fault
from tests.kit.verdict import Verdict

SLACK_S = 3.5
"""A node waits two seconds for another before it takes it for stuck, and looks every half second;
the rest is for a machine that has other things to do."""
SILENCE_S = 4.5
"""A node that is silent for about so long is given up by the others, with what they told it."""
CONVERGED_S = 12.0
"""An era may last so much longer for those who have not heard of the next."""

ACKNOWLEDGED_MIN = 0.5
"""Of all that is sent to nodes that take connections, in the worst of rounds."""

OwnerOf: TypeAlias = Callable[[frozenset[str], str], str]
"""Names the owner of a stream among nodes."""


def judge(history: History, owner_of: OwnerOf, *, errors: Iterable[str] = ()) -> Verdict:
    """Return what is to be said of a round; `errors` are lines of the logs that show a bug."""
    verdict = Verdict()
    holders = _Holders(history, owner_of)
    _judge_waiting(history, verdict)
    _judge_receivers(history, verdict)
    _judge_work(history, verdict, holders)
    _judge_kept(history, verdict, holders)
    _judge_stored(history, verdict)
    if history.heal_s is None:
        verdict.findings.add("not healed", f"{_faults(history)}: {history.views}")
    for line in errors:
        verdict.findings.add("error", line)
    _count(history, verdict)
    _judge_work_done(verdict)
    return verdict


class _Holders:
    """Who may have had a message."""

    def __init__(self, history: History, owner_of: OwnerOf) -> None:
        self._eras = history.eras
        self._kills = [each for each in history.performed if each.step.fault is Fault.KILL]
        self._owner_of = owner_of

    def may_be_lost(self, sent: Sent) -> bool:
        """Say whether a node was killed that may have had it."""
        return any(
            kill.to_s >= sent.from_s and kill.node in self._between(sent, kill)
            for kill in self._kills
        )

    def _between(self, sent: Sent, kill: Performed) -> set[str]:
        return {
            self._owner_of(era.nodes, sent.stream)
            for era in self._eras
            if era.nodes and era.from_s <= kill.to_s and era.to_s + CONVERGED_S >= sent.from_s
        }


def _judge_waiting(history: History, verdict: Verdict) -> None:
    pauses = [each for each in history.performed if each.step.fault is Fault.PAUSE]
    for poll in history.polls:
        due_s = poll.from_s + poll.timeout_s
        for pause in pauses:
            if pause.node == poll.node and pause.from_s <= poll.to_s and pause.to_s >= poll.from_s:
                due_s = max(due_s, pause.to_s)
        late_s = poll.to_s - due_s
        if late_s > SLACK_S + history.lag_s:
            said = f"{poll.stream} by {poll.node} at {poll.from_s:.2f}: {late_s:.2f} s too long"
            verdict.findings.add("waited too long", f"{said}, {poll.answer}; {_faults(history)}")
    waits = [poll.to_s - poll.from_s - poll.timeout_s for poll in history.polls]
    verdict.counts["latest answer ms"] = max(0, round(max(waits, default=0.0) * 1_000))


def _judge_receivers(history: History, verdict: Verdict) -> None:
    known = {sent.n: sent for sent in history.sent}
    got: dict[int, list[Poll]] = defaultdict(list)
    for poll in history.polls:
        if poll.n is not None:
            got[poll.n].append(poll)
    for n, polls in got.items():
        if len(polls) > 1:
            where = " and ".join(f"{poll.node} at {poll.to_s:.2f}" for poll in polls)
            said = f"message {n} of {polls[0].stream} by {where}; {_faults(history)}"
            verdict.findings.add("received twice", said)
        if n not in known or known[n].stream != polls[0].stream:
            verdict.findings.add("invented", f"message {n} of {polls[0].stream}")
        elif known[n].outcome is Outcome.NOT:
            said = f"message {n} of {known[n].stream} by {known[n].node}; {_faults(history)}"
            verdict.findings.add("refused and received", said)


def _judge_work(history: History, verdict: Verdict, holders: _Holders) -> None:
    """Count what never came to a receiver, and who may have taken it with them."""
    got = {poll.n for poll in history.polls}
    missing: dict[str, list[Sent]] = defaultdict(list)
    for sent in history.sent:
        if sent.outcome is Outcome.DONE and sent.n not in got:
            missing[sent.stream].append(sent)
    for stream, lost in missing.items():
        with_node = [sent for sent in lost if holders.may_be_lost(sent)]
        rest = [sent for sent in lost if not holders.may_be_lost(sent)]
        broken = [
            poll for poll in history.polls if poll.stream == stream and _may_lose(poll, history)
        ]
        unexplained = _without_receiver(rest, broken)
        verdict.counts["lost with a node"] += len(with_node)
        verdict.counts["lost on the way"] += len(rest) - len(unexplained)
        for sent in unexplained:
            verdict.findings.add("lost", _text(sent, history))


def _may_lose(poll: Poll, history: History) -> bool:
    """Say whether a receiver may have been given a message that never reached it."""
    return poll.outcome is Outcome.UNSURE or any(
        fault.node == poll.node
        and fault.step.fault in (Fault.PAUSE, Fault.CUT, Fault.ONE_WAY)
        and fault.to_s - fault.from_s >= SILENCE_S
        and fault.from_s <= poll.to_s
        and fault.to_s >= poll.from_s
        for fault in history.performed
    )


def _without_receiver(lost: Sequence[Sent], broken: Sequence[Poll]) -> list[Sent]:
    """Return those for which there is no receiver of its own that may have been given it."""
    free = sorted(broken, key=lambda poll: poll.to_s)
    left = []
    for sent in sorted(lost, key=lambda each: each.from_s):
        receiver = next((poll for poll in free if poll.to_s >= sent.from_s), None)
        if receiver is None:
            left.append(sent)
        else:
            free.remove(receiver)
    return left


def _judge_kept(history: History, verdict: Verdict, holders: _Holders) -> None:
    known = {sent.n: sent for sent in history.kept_sent}
    for stream, numbers in history.kept.items():
        for n, times in Counter(numbers).items():
            if times > 1:
                verdict.findings.add("kept twice", f"message {n} of {stream}, {times} times")
            if n not in known or known[n].stream != stream:
                verdict.findings.add("invented", f"message {n} of {stream}")
    for sent in history.kept_sent:
        if sent.outcome is Outcome.DONE and sent.n not in history.kept.get(sent.stream, ()):
            if holders.may_be_lost(sent):
                verdict.counts["lost with a node"] += 1
            else:
                verdict.findings.add("lost from a ring", _text(sent, history))


def _judge_stored(history: History, verdict: Verdict) -> None:
    for stream, found in history.stored.items():
        positions = [position for position, _ in found]
        if positions != list(range(1, len(found) + 1)):
            verdict.findings.add("positions with holes", f"{stream}: {_first_hole(positions)}")
        for n, times in Counter(n for _, n in found).items():
            if times > 1:
                verdict.findings.add("stored twice", f"message {n} of {stream}, {times} times")
    places = {
        stream: {n: position for position, n in found} for stream, found in history.stored.items()
    }
    for sent in history.stored_sent:
        place = places.get(sent.stream, {}).get(sent.n)
        if sent.outcome is not Outcome.DONE:
            continue
        if place is None:
            verdict.findings.add("lost from a store", _text(sent, history))
        elif place != sent.position:
            said = f"message {sent.n} of {sent.stream}: {sent.position}, and found at {place}"
            verdict.findings.add("position changed", said)


def _first_hole(positions: Sequence[int]) -> str:
    for wanted, found in enumerate(positions, 1):
        if wanted != found:
            return f"{found} where {wanted} should be"
    return "none"


def _text(sent: Sent, history: History) -> str:
    return (
        f"message {sent.n} of {sent.stream} by {sent.node} at {sent.to_s:.2f}; {_faults(history)}"
    )


def _faults(history: History) -> str:
    return ", ".join(
        f"{each.node} {each.step.fault.value} {each.from_s:.2f}-{each.to_s:.2f}"
        for each in history.performed
    )


def _count(history: History, verdict: Verdict) -> None:
    counts = verdict.counts
    counts["sent"] = len(history.sent) + len(history.kept_sent)
    counts["stored"] = sum(map(len, history.stored.values()))
    everything = [*history.sent, *history.kept_sent]
    counts["acknowledged"] = sum(each.outcome is Outcome.DONE for each in everything)
    counts["unsure"] = sum(each.outcome is Outcome.UNSURE for each in everything)
    counts["received"] = sum(poll.n is not None for poll in history.polls)
    counts["polls"] = len(history.polls)
    counts["broken polls"] = sum(poll.outcome is Outcome.UNSURE for poll in history.polls)
    for each in history.performed:
        counts[each.step.fault.value] += 1


def _judge_work_done(verdict: Verdict) -> None:
    counts = verdict.counts
    if counts["acknowledged"] < ACKNOWLEDGED_MIN * counts["sent"] or not counts["sent"]:
        said = f"of {counts['sent']} messages {counts['acknowledged']} were acknowledged"
        verdict.findings.add("idle", said)
    for name in ("received", "stored"):
        if not counts[name]:
            verdict.findings.add("idle", f"nothing was {name}")


def eras_of(changes: Sequence[tuple[float, Sequence[frozenset[str]]]], end_s: float) -> list[Era]:
    """Return the eras from what was seen from when on: each change ends what was before it."""
    ends = [at for at, _ in changes[1:]] + [end_s]
    return [
        Era(at, end, nodes)
        for (at, views), end in zip(changes, ends, strict=True)
        for nodes in views
    ]
