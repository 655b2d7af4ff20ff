"""Bugs on purpose: the checkers must find each, and by the name they have for it.

A plant takes away one thing that replication relies on, in the core, the log or the shell.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.cluster.simulation.topics import hosted
from tests.cluster.simulation.topics.hosted import Hosted
from tests.cluster.simulation.topics.world import played
from tests.kit.verdict import Findings
from waterclock.cluster.replication import campaign, leadership
from waterclock.cluster.replication.effects import Truncate
from waterclock.cluster.replication.following import Following
from waterclock.cluster.replication.lineage import Lineage
from waterclock.storage import replica_log
from waterclock.storage.flush import FlushPlan
from waterclock.storage.replica_log import ReplicaLog

Patch = Callable[[pytest.MonkeyPatch], None]


class Plant(NamedTuple):
    """A bug, and how it is found."""

    patch: Patch
    gives_away: frozenset[str]
    """The findings that name it: one of them at least must be made."""
    seeds_max: int
    kinds: tuple[str, ...] = ()
    """The faults that bring it to light; none: those that each seed chooses."""


PLANTS: dict[str, Plant] = {}


def planted(
    *gives_away: str, seeds_max: int = 100, kinds: tuple[str, ...] = ()
) -> Callable[[Patch], Patch]:
    """Put a bug among the others; it is found within so many seeds."""

    def put(patch: Patch) -> Patch:
        name = patch.__name__.replace("_", " ")
        PLANTS[name] = Plant(patch, frozenset(gives_away), seeds_max, kinds)
        return patch

    return put


def swap(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, wrap: Callable[[Any], Any]
) -> None:
    """Replace a function by what is made of it."""
    monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))


def first_found(name: str) -> tuple[int | None, Findings]:
    """Return the first seed that finds a bug by its name, and all that it finds."""
    plant, findings = PLANTS[name], Findings()
    with pytest.MonkeyPatch.context() as monkeypatch:
        plant.patch(monkeypatch)
        for seed in range(1, plant.seeds_max + 1):
            findings = played(seed, plant.kinds).findings
            if plant.gives_away & set(findings):
                return seed, findings
    return None, findings


# Commit


@planted("lost write", "copies differ", "inconsistent offsets")
def one_replica_is_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit what the furthest has."""
    monkeypatch.setattr(leadership, "majority_end", max)


@planted("lost write", "copies differ", "inconsistent offsets")
def what_is_written_counts_as_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica reports before its disk is done."""
    monkeypatch.setattr(ReplicaLog, "flushed_end", ReplicaLog.end)


@planted("inconsistent offsets", "invented", "early fire", "copies differ")
def readers_see_what_is_only_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit point is not heeded."""
    monkeypatch.setattr(FlushPlan, "commit", lambda self, end: None)


@planted("lost write", "false ack")
def a_leader_acknowledges_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was superseded and has not heard of it."""

    def lax(self: Hosted) -> None:
        for each in self.waiting:
            each.answered("acked", each.offset)
        self.waiting.clear()

    monkeypatch.setattr(Hosted, "_committed", lax)


@planted("false ack", seeds_max=400)
def who_waits_does_not_hear_that_a_leader_stepped_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' messages come to the offset that is waited for."""
    monkeypatch.setattr(Hosted, "fail_waiting", lambda self: None)


# Leaders


@planted("lost write", "copies differ", "inconsistent offsets")
def whoever_is_first_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate does not ask whose log is the greatest."""

    def wrap(greatest: Any) -> Any:
        def lax(self: campaign.Campaign, voters: Any, last: Any) -> Any:
            return None if greatest(self, voters, last) is None else self._me

        return lax

    swap(monkeypatch, campaign.Campaign, "greatest", wrap)


@planted("two leaders", "problem")
def a_record_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A swap does not look at the revision: an epoch is given out twice."""

    def wrap(txn: Any) -> Any:
        return lambda conditions, success, failure: txn((), success, failure)

    swap(monkeypatch, hosted, "Txn", wrap)


# Followers


@planted("lost write", "copies differ", "inconsistent offsets")
def a_follower_cuts_its_log_to_its_own_commit_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-101, the first scenario."""

    def wrap(fetch: Any) -> Any:
        def lax(self: Following, log: Any) -> Any:
            end = log._committed_end
            is_first = not getattr(self, "is_cut", False)
            self.is_cut = True  # type: ignore[attr-defined]
            is_longer = is_first and end < log.end
            return [Truncate(end)] if is_longer else fetch(self, log)

        return lax

    swap(monkeypatch, Following, "fetch", wrap)


@planted("copies differ", "error", "stuck")
def logs_are_compared_by_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not by their epochs."""
    monkeypatch.setattr(Lineage, "diverging", lambda self, claim: None)


@planted("faulty log", kinds=("power cut", "slow disk"))
def a_follower_keeps_what_the_leader_had_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame testifies to another's disk."""
    monkeypatch.setattr(replica_log, "with_flushed_end", lambda header, flushed_end: header)


@planted("duplicate")
def a_follower_notes_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it leads it takes repeats for new."""
    monkeypatch.setattr(ReplicaLog, "_note_ids", lambda self, frame: None)


@planted("duplicate", "fired after cancel", "unfired")
def a_follower_notes_no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it leads it does not know what has fired or was cancelled."""
    monkeypatch.setattr(replica_log, "note_timers", lambda delta, frame: None)


@planted("stuck")
def a_follower_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not ask again when a link is back."""

    def wrap(fetch: Any) -> Any:
        def lax(self: Following, log: Any) -> Any:
            has_asked = getattr(self, "has_asked", False)
            self.has_asked = True  # type: ignore[attr-defined]
            return [] if has_asked else fetch(self, log)

        return lax

    swap(monkeypatch, Following, "fetch", wrap)


# Timers and readers


@planted("early fire")
def timers_are_hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """They fire a tenth of a second before their time."""

    def wrap(fire_due: Any) -> Any:
        def lax(self: Hosted) -> None:
            self.process.machine.clock_error_ms += 100
            fire_due(self)
            self.process.machine.clock_error_ms -= 100

        return lax

    swap(monkeypatch, Hosted, "fire_due", wrap)


@planted("copies differ", "error", "duplicate", "stuck")
def timers_go_on_when_a_leader_steps_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower writes to its log on its own."""

    def wrap(fire_due: Any) -> Any:
        def lax(self: Hosted) -> None:
            was = self.is_open, self.is_led
            self.is_open = self.is_led = self.is_readable and bool(self.core.leader)
            fire_due(self)
            self.is_open, self.is_led = was

        return lax

    swap(monkeypatch, Hosted, "fire_due", wrap)


@planted("fired after cancel", kinds=("node cut off", "power cut"))
def a_cancel_is_acknowledged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is committed."""

    def wrap(change: Any) -> Any:
        def lax(self: Hosted, offset: int, due_ms: int | None, answered: Any) -> None:
            count = len(self.waiting)
            change(self, offset, due_ms, answered)
            for each in self.waiting[count:]:
                each.answered("acked", each.offset)

        return lax

    swap(monkeypatch, Hosted, "change", wrap)


@planted("nonmonotonic poll")
def a_read_begins_one_frame_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gets again what it has."""

    def wrap(read: Any) -> Any:
        def lax(self: Hosted, offset: int) -> Any:
            found = read(self, offset)
            return read(self, max(0, offset - 1)) if found else found

        return lax

    swap(monkeypatch, Hosted, "read", wrap)


@planted("skipped poll")
def a_read_leaves_a_frame_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is far behind is led past one."""

    def wrap(read: Any) -> Any:
        def lax(self: Hosted, offset: int) -> Any:
            found = read(self, offset)
            return found[1:] if len(found) > 20 else found

        return lax

    swap(monkeypatch, Hosted, "read", wrap)


# Rewriting


@planted("fired after cancel", "stuck", "copies differ", "duplicate", "error")
def what_was_rewritten_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that lags keeps a scheduled message whose cancel was compacted away."""
    start = property(lambda self: self.store.start)
    monkeypatch.setattr(ReplicaLog, "stream_start", start)


@planted("faulty log", "stuck", "copies differ", "error")
def a_copy_comes_without_its_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica cannot tell what it has from what another leader wrote there."""

    def wrap(install: Any) -> Any:
        def lax(self: ReplicaLog, intent: Any) -> None:
            install(self, intent._replace(starts=()))

        return lax

    swap(monkeypatch, ReplicaLog, "install", wrap)
