"""What one group with one member must have got, may get, and may say of what it has.

A member holds what it was handed until it answers, or for the time of its lease: so long by the
monotonic clock. Failures are counted by the answers and by leases that ran out, and by nothing
else. A kill forgets what was not saved: acks and failures of the last second may come to nothing.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.message_model import Known, Messages, Outcome
from tests.simulation.simulated_node import ACK_TIMEOUT_MS, MAX_RETRIES
from waterclock.model.clock import PAUSE_MS

SAVED_MS = 1_500
"""What is older was saved, if the node ran for as long."""
SETTLED_MS = 400
"""After a pause the clock of leases may stand so long, for what was sent meanwhile to be read."""


class Lease(NamedTuple):
    """Names one attempt at one message."""

    partition: int
    generation: int
    offset: int
    attempt: int

    def __str__(self) -> str:
        return "-".join(map(str, self))


class Handed(NamedTuple):
    """A message as a member gets it."""

    number: int
    lease: Lease
    due_ms: int | None
    ends_ms: int
    """When the lease ends, by the wall clock."""
    wall_ms: int
    """When it came, by the wall clock ..."""
    steady_ms: int
    """... and by the monotonic one."""


class State(NamedTuple):
    """What is known of a message's progress."""

    failed_min: int = 0
    failed_max: int = 0
    is_acked: bool = False
    may_be_acked: bool = False

    @property
    def is_dead(self) -> bool:
        return self.failed_min > MAX_RETRIES

    @property
    def may_be_dead(self) -> bool:
        return self.failed_max > MAX_RETRIES


@dataclass
class Progress:
    """How far a group has come with one message."""

    state: State = field(default_factory=State)
    lease: Lease | None = None
    ends_ms: int = 0
    """When the lease ends, by the monotonic clock."""
    slack_ms: int = 0
    """How much later that may be: pauses are not measured to the millisecond."""
    is_in_doubt: bool = False
    """The lease may be over."""
    was_acked: bool = False
    may_be_dead_letter: bool = False
    """A dead letter may have been written, whether or not the group remembers."""
    may_wait: bool = False
    """A kill came before it could be saved that the clock had been set: for all that is known, the
    next attempt is as far away as the clock was set back."""
    past: deque[tuple[int, State]] = field(default_factory=lambda: deque(maxlen=30))
    """States, and until when they were true, in time that the node ran."""


class GroupModel:
    """The progress of a group."""

    def __init__(self, name: str, messages: Messages) -> None:
        self.name = name
        self._messages = messages
        self._progress: dict[int, Progress] = {}
        self.leases: list[Lease] = []
        """All there ever were."""
        self.ran_ms = 0
        self._settling_until_ms = 0
        self._set_at_ms = -SAVED_MS

    def of(self, number: int) -> Progress:
        """Return the progress with a message."""
        return self._progress.setdefault(number, Progress())

    def held(self) -> dict[Lease, int]:
        """Return what the member has in hands: numbers by lease."""
        found = {p.lease: number for number, p in self._progress.items() if p.lease is not None}
        return {lease: found[lease] for lease in sorted(found)}

    def is_blocking(self, ms: int, now_ms: int) -> bool:
        """Tell whether no lease ends for so long."""
        ends = [p.ends_ms for p in self._progress.values() if p.lease is not None]
        return min(ends, default=now_ms + ms) >= now_ms + ms

    # What happens

    def time_passed(self, start_ms: int, end_ms: int) -> None:
        """Take note of time by the monotonic clock, in which the node ran."""
        self.ran_ms += end_ms - start_ms
        for progress in self._progress.values():
            state = progress.state
            if progress.lease is None or end_ms < progress.ends_ms:
                continue
            if not progress.is_in_doubt:
                progress.is_in_doubt = True
                self._set(progress, state._replace(failed_max=state.failed_max + 1))
            if end_ms >= progress.ends_ms + progress.slack_ms:
                self._set(progress, progress.state._replace(failed_min=state.failed_min + 1))
                progress.lease, progress.is_in_doubt = None, False

    def clock_was_set(self) -> None:
        """Take note that the wall clock was."""
        self._set_at_ms = self.ran_ms

    def paused(self, ms: int, now_ms: int) -> None:
        """Take note that the node did not run: hardly any of the time counts."""
        self.clock_was_set()
        self._settling_until_ms = now_ms + SETTLED_MS
        for progress in self._progress.values():
            progress.ends_ms += ms - PAUSE_MS
            progress.slack_ms += PAUSE_MS + SETTLED_MS

    def delivered(self, handed: Handed) -> None:
        """Take a message that was handed out."""
        wall_ms, steady_ms = handed.wall_ms, handed.steady_ms
        message, lease = self._messages.all[handed.number], handed.lease
        progress = self.of(message.number)
        state = progress.state
        where = f"{self.name} got {lease} of {message}"
        message.is_now(Outcome.FIRED, why=where)
        possible = {None, message.due_ms} | message.earlier_due_ms
        assert handed.due_ms in possible, f"{where}, due at {handed.due_ms}"
        assert message.partition == lease.partition, where
        expires_ms = message.expires_ms
        assert expires_ms is None or wall_ms < expires_ms, f"{where}, which is too late"
        assert not state.is_acked, f"{where}, which it has acked: {progress}"
        assert not state.is_dead, f"{where}, which is dead: {progress}"
        is_held = progress.lease is not None and not progress.is_in_doubt
        assert not is_held, f"{where}, which it holds: {progress}"
        failed = lease.attempt - 1
        assert state.failed_min <= failed <= state.failed_max, f"{where}: {progress}"
        self._set(progress, State(failed, failed))
        self.leases.append(lease)
        progress.lease, progress.is_in_doubt, progress.may_wait = lease, False, False
        progress.ends_ms = handed.ends_ms - wall_ms + steady_ms
        progress.slack_ms = max(0, self._settling_until_ms - steady_ms)
        left_ms = progress.ends_ms - steady_ms
        assert 0 < left_ms <= ACK_TIMEOUT_MS, f"{where}, for {left_ms} ms"

    def answered(
        self, lease: Lease, kind: str, *, is_refused: bool, now_ms: int, until_ms: int
    ) -> None:
        """Take what the node made of an answer; times by the monotonic clock."""
        progress = next((p for p in self._progress.values() if p.lease == lease), None)
        if progress is None:
            assert is_refused, f"{self.name}: {kind} of {lease}, which it does not hold"
            return
        context = f"{self.name}: {kind} of {lease} was {'refused' if is_refused else 'taken'}"
        if progress.is_in_doubt:
            progress.is_in_doubt = False
            state = progress.state
            if is_refused:
                progress.lease = None
                return
            self._set(progress, state._replace(failed_max=state.failed_max - 1))
        assert not is_refused, f"{context}: {progress}"
        if kind == "extend":
            progress.ends_ms = until_ms
            progress.slack_ms = max(0, self._settling_until_ms - now_ms)
            return
        progress.lease = None
        state = progress.state
        if kind == "ack":
            progress.was_acked = True
            self._set(progress, state._replace(is_acked=True, may_be_acked=True))
        elif kind == "nack":
            self._fail(progress)
        elif kind == "reject":
            self._set(progress, State(MAX_RETRIES + 1, MAX_RETRIES + 1))

    def lost_member(self) -> None:
        """Take note that the member is gone: what it held comes again, and nothing has failed."""
        for progress in self._progress.values():
            progress.lease, progress.is_in_doubt = None, False

    def killed(self) -> None:
        """Take note that only what was saved is known any more."""
        self.lost_member()
        saved_ms = self.ran_ms - SAVED_MS
        for progress in self._progress.values():
            states = [state for until_ms, state in progress.past if until_ms > saved_ms]
            states.append(progress.state)
            is_acked = all(state.is_acked for state in states)
            progress.state = State(
                min(state.failed_min for state in states),
                max(state.failed_max for state in states),
                is_acked,
                any(state.may_be_acked for state in states),
            )
            progress.past.clear()
            progress.may_wait |= self._set_at_ms > saved_ms

    def _fail(self, progress: Progress) -> None:
        state = progress.state
        failed = state._replace(failed_min=state.failed_min + 1, failed_max=state.failed_max + 1)
        self._set(progress, failed)

    def _set(self, progress: Progress, state: State) -> None:
        progress.past.append((self.ran_ms, progress.state))
        progress.state = state
        progress.may_be_dead_letter |= state.may_be_dead

    # In the end

    def is_owed(self) -> bool:
        """Tell whether something has still to come, or may."""
        return any(map(self._is_owed, self._messages.all))

    def _is_owed(self, message: Known) -> bool:
        progress = self.of(message.number)
        is_free = progress.was_acked or progress.state.may_be_dead or progress.may_wait
        return message.outcomes == {Outcome.FIRED} and not message.was_late and not is_free

    def check_end(self, dead_letters: dict[int, str]) -> None:
        """Look for what is missing, given the reason of each dead letter by number."""
        for message in self._messages.all:
            progress = self.of(message.number)
            state = progress.state
            reason = dead_letters.get(message.number)
            context = f"{self.name}, {message}, {progress}, dead letter: {reason}"
            if reason is None:
                assert not state.is_dead, f"dead and not kept: {context}"
                assert not self._is_owed(message), f"lost: {context}"
            else:
                assert progress.may_be_dead_letter, f"dead for no reason: {context}"
