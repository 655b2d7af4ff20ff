"""What was asked of a node and what it answered, over all its runs, judged as it comes.

Everyone who talks to the node runs in this process, and the node runs on this computer, so there is
one clock. What only shows once all is quiet (lost, passed over, twice in the log) is judged by
`verdict.py`; what shows at once is judged here:

    early               received before its due time, or before any due time it was ever given
    after cancel        received although a cancel was answered with DONE
    after expiry        handed out although its time was over
    out of order        a first delivery before that of a lower offset, of one partition and run
    offset reused       one place, two messages; or a repeat that was answered with another place
    wrong content       not the value that was published
    unpublished         nobody ever published it
    unexplained repeat  delivered again, and nothing that happened to it allows that
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.integration.stint import SENDING, Held, NodeRun, Place, Stint, now_ms
from tests.kit.verdict import Findings

UNSAVED_MS_MAX = 3_000
"""Progress is saved every second. What was acked longer than this before a kill, with time for a
busy computer to spare, must not come again."""


@dataclass(slots=True)
class Published:
    """One message, by its id."""

    message_id: bytes
    value: bytes
    key: bytes | None = None
    partition: int | None = None
    dues: set[int] = field(default_factory=set)
    """The due times it may have now; 0 is none. Several if nobody answered a reschedule."""
    asked_due: int | None = None
    """The time that the last reschedule added to these."""
    first_due: int | None = None
    """The due time it had before the first reschedule, once there was one."""
    expires_ms: int = 0
    """Until when it is of use, with the due time it was published with."""
    place: Place | None = None
    """Where it was said to be, once a publish was acknowledged."""
    is_cancel_asked: bool = False
    cancelled_ms: int = 0
    """When a cancel was answered with DONE."""
    received_ms: int = 0
    """When anyone got it first."""

    def end_ms(self, due_ms: int) -> int:
        """Return until when it is of use if it is due then; 0: for ever."""
        moved_ms = 0 if self.first_due is None else due_ms - self.first_due
        return self.expires_ms and self.expires_ms + moved_ms

    def may_be_due(self, due_ms: int) -> bool:
        """Tell whether this is a time it was given; moved to one that had passed, it is later."""
        is_moved = self.first_due is not None
        return due_ms in self.dues or (is_moved and min(self.dues) < due_ms)


@dataclass(slots=True)
class GroupHistory:
    """What one group has seen."""

    held: dict[Place, Held] = field(default_factory=dict)
    acked: set[Place] = field(default_factory=set)
    rejected: set[Place] = field(default_factory=set)
    failed: set[Place] = field(default_factory=set)
    """Nacked, timed out, or lost with its member: what may die of it."""
    first_until: dict[tuple[int, int], int] = field(default_factory=dict)
    """By partition and run: up to where first deliveries have come."""
    deliveries: int = 0


class History:
    """The oracle. Tell it everything, in the order in which it happens."""

    def __init__(self, groups: tuple[str, ...]) -> None:
        self.messages: dict[bytes, Published] = {}
        self.groups = {name: GroupHistory() for name in groups}
        self.runs: list[NodeRun] = []
        self.findings = Findings()
        self.counts: Counter[str] = Counter()
        self.repeats: Counter[str] = Counter()
        """Messages delivered again, by what allows it."""
        self._ids: dict[Place, bytes] = {}
        self._suspects: list[tuple[bytes, Place, Held, Stint, int]] = []

    @property
    def run(self) -> NodeRun:
        """The present one, or the last."""
        return self.runs[-1]

    def born(self, ready_s: float) -> None:
        """A run of the node begins."""
        self.runs.append(NodeRun(len(self.runs), ready_s))

    # Publishing

    def asked(self, message: Published) -> None:
        """A message is about to be published, or to be published again."""
        self.messages.setdefault(message.message_id, message)
        self.counts["asked"] += 1

    def stored(self, message_id: bytes, place: Place, *, is_new: bool) -> None:
        """A publish was acknowledged."""
        message = self.messages[message_id]
        self.counts["acknowledged"] += 1
        self.counts["repeats recognised"] += not is_new
        if message.place is None:
            message.place = place
            self.counts["messages"] += 1
        elif is_new or message.place != place:
            self.findings.add(
                "offset reused", f"{message_id!r} is at {message.place}, again at {place} {is_new=}"
            )
        self._named(place, message_id)

    def _named(self, place: Place, message_id: bytes) -> None:
        known = self._ids.setdefault(place, message_id)
        if known != message_id:
            self.findings.add("offset reused", f"{place} is {known!r} and {message_id!r}")

    # Time

    def moving(self, message: Published, due_ms: int) -> None:
        """A reschedule is about to be asked for: from now on both times are possible."""
        if message.first_due is None:
            message.first_due = min(message.dues)
        message.asked_due = None if due_ms in message.dues else due_ms
        message.dues.add(due_ms)

    def moved(self, message: Published, due_ms: int, *, outcome: int) -> None:
        """A reschedule was answered."""
        if outcome == 1:
            message.dues = {due_ms}
            self.counts["rescheduled"] += 1
        else:
            message.dues -= {message.asked_due}
            self.counts["rescheduled too late"] += 1
            if outcome == 0:
                self.findings.add("lost publish", f"{message.message_id!r} unknown to reschedule")

    def cancelled(self, message: Published, *, outcome: int) -> None:
        """A cancel was answered."""
        if outcome == 1:
            message.cancelled_ms = now_ms()
            self.counts["cancelled"] += 1
            if message.received_ms:
                # It was open when it was cancelled, so nobody can have got it, before or after.
                self.findings.add("after cancel", f"{message.message_id!r}: DONE after delivery")
        else:
            self.counts["cancelled too late"] += 1
            if outcome == 0:
                self.findings.add("lost publish", f"{message.message_id!r} unknown to cancel")

    # Delivery

    def received(
        self,
        stint: Stint,
        place: Place,
        held: Held,
        *,
        message_id: bytes,
        value: bytes | None,
        due_ms: int,
        lease_ms: int,
    ) -> None:
        """A member got a message."""
        time_ms = now_ms()
        group = self.groups[stint.group]
        group.deliveries += 1
        self._named(place, message_id)
        message = self.messages.get(message_id)
        if message is None:
            self.findings.add("unpublished", f"{message_id!r} at {place}")
            return
        where = f"{message_id!r} at {place} in {stint.group}, run {stint.run.number}"
        if value != message.value:
            self.findings.add("wrong content", f"{where}: {value!r}, not {message.value!r}")
        if time_ms < due_ms:
            self.findings.add("early", f"{where}: due {due_ms}, {due_ms - time_ms} ms early")
        elif not message.may_be_due(due_ms):
            self.findings.add("early", f"{where}: due {due_ms}, given were {message.dues}")
        message.received_ms = message.received_ms or time_ms
        if message.cancelled_ms:
            self.findings.add("after cancel", f"{where}: {time_ms - message.cancelled_ms} ms after")
        end_ms = message.end_ms(due_ms)
        if end_ms and held.deadline_ms - lease_ms >= end_ms:
            late_ms = held.deadline_ms - lease_ms - end_ms
            self.findings.add("after expiry", f"{where}: {late_ms} ms after")
        before = held.before = group.held.get(place)
        group.held[place] = held
        if before is None:
            self._first(group, stint, place, held, where)
        else:
            self._again(group, before, stint, place, message_id, time_ms)

    def _first(
        self, group: GroupHistory, stint: Stint, place: Place, held: Held, where: str
    ) -> None:
        # A second attempt of what never arrived here comes when it is due again.
        if held.attempt > 1:
            return
        partition, offset = place
        key = partition, stint.run.number
        until = group.first_until.get(key, -1)
        if offset < until:
            self.findings.add("out of order", f"{where}: after {until}")
        group.first_until[key] = max(until, offset)

    def _again(
        self,
        group: GroupHistory,
        before: Held,
        stint: Stint,
        place: Place,
        message_id: bytes,
        time_ms: int,
    ) -> None:
        if before.answer not in ("ack", "reject"):
            group.failed.add(place)
        cause = self._cause(before, stint, time_ms)
        if cause is None:
            # A refusal of its answer may still be on its way to us.
            self._suspects.append((message_id, place, before, stint, time_ms))
        else:
            self.repeats[cause] += 1

    def _cause(self, before: Held, stint: Stint, time_ms: int) -> str | None:
        """Return what allows a message to come again."""
        run, is_same_run = before.stint.run, before.stint.run is stint.run
        if before.answer == "nack":
            return "nacked"
        if before.answer == "give back":
            return "given back"
        if not before.answer:
            if not is_same_run:
                return "crash or stop, unanswered"
            if before.stint.ended_ms:
                return "member gone"
            if before.lost_ms:
                return "partition moved"
            return "timed out" if time_ms >= before.deadline_ms else None
        if before.is_refused:
            return "answered too late"
        if not before.is_heard_in_time:
            if time_ms >= before.deadline_ms and is_same_run:
                return "answered too late"
            if before.lost_ms:
                return "partition moved"
            if before.stint.cut_ms or (is_same_run and before.stint.broken_ms):
                return "answer lost with its stream"
        if is_same_run:
            return None
        if run.stop_ms and not run.is_killed:
            return "answered after the stop" if before.answered_ms >= run.stop_ms else None
        is_recent = run.ended_ms - before.answered_ms <= UNSAVED_MS_MAX
        return "crash, answer not saved yet" if is_recent else None

    def settle_suspects(self) -> None:
        """Judge repeats that nothing explained when they came; now all is known."""
        for message_id, place, before, stint, time_ms in self._suspects:
            cause = self._cause(before, stint, time_ms)
            if cause is not None:
                self.repeats[cause] += 1
                continue
            run, now = before.stint.run, stint.run
            self.findings.add(
                "unexplained repeat",
                f"{message_id!r} at {place} in {stint.group}: {before.answer or 'unanswered'} "
                f"{time_ms - (before.answered_ms or time_ms)} ms before, attempt {before.attempt}, "
                f"run {run.number} (ended {time_ms - (run.ended_ms or time_ms)} ms before, "
                f"stop {time_ms - (run.stop_ms or time_ms)} ms before, killed={run.is_killed}) "
                f"and {now.number}; stint ended {time_ms - before.stint.ended_ms} ms before, "
                f"deadline {time_ms - before.deadline_ms} ms before",
            )
        self._suspects.clear()

    def answered(self, stint: Stint, place: Place, answer: str, deadline_ms: int = 0) -> None:
        """A member is about to answer for a message."""
        group = self.groups[stint.group]
        held = group.held[place]
        if answer == "ack":
            group.acked.add(place)
        elif answer == "reject":
            group.rejected.add(place)
        elif answer == "nack":
            group.failed.add(place)
        if held.stint is not stint:
            return  # it came again to somebody else meanwhile
        if answer == "extend":
            held.extended_ms, held.extend_echo = deadline_ms, SENDING
        else:
            held.answer, held.echo = answer, SENDING
            held.answered_ms = now_ms()

    def sent(self, stint: Stint, place: Place, answer: str) -> None:
        """An answer has left: an echo asked for from now on shows that it was heard."""
        held = self.groups[stint.group].held[place]
        if held.stint is not stint:
            return
        if answer == "extend":
            held.extend_echo = stint.asked
        else:
            held.answered_ms, held.echo = now_ms(), stint.asked

    def refused(self, stint: Stint, place: Place) -> None:
        """The node did not take an answer."""
        held = self.groups[stint.group].held.get(place)
        while held is not None:
            if held.stint is stint:
                held.is_refused = True
            held = held.before

    def refused_all(self, stint: Stint, partition: int, generation: int) -> None:
        """The node says that a member does not own a partition."""
        stint.lost_ms.setdefault((partition, generation), now_ms())
