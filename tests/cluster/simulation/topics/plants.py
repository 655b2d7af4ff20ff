"""Bugs on purpose: the checkers must find each, and by the name they have for it.

A plant takes away one thing that replication relies on, in the core, the log or the shell.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.cluster.simulation.topics import hosted
from tests.cluster.simulation.topics.hosted import Hosted
from tests.cluster.simulation.topics.machine import Machine
from tests.cluster.simulation.topics.schedules import SCHEDULES
from tests.cluster.simulation.topics.world import played
from tests.kit.verdict import Findings
from waterclock.cluster.replication import campaign, leadership
from waterclock.cluster.replication.effects import Truncate
from waterclock.cluster.replication.election import Election
from waterclock.cluster.replication.following import Following
from waterclock.cluster.replication.leadership import Leadership
from waterclock.cluster.replication.lineage import Lineage
from waterclock.cluster.replication.majority_watch import MajorityWatch
from waterclock.cluster.replication.placement import Places
from waterclock.cluster.replication.replica import Replica
from waterclock.cluster.replication.voters import majority_of
from waterclock.model.ids import Offset
from waterclock.server.cluster.replication.placing import Placing
from waterclock.storage import replica_log
from waterclock.storage.flush import FlushPlan
from waterclock.storage.installation import lost_log
from waterclock.storage.promises import Promises
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
    schedule: str = ""
    """What brings it to light, if no chance does."""


PLANTS: dict[str, Plant] = {}
LOST = ("lost write", "copies differ", "inconsistent offsets")
"""Each says that something committed is gone."""
LACKING = (*LOST, "problem")
"""A replica may see it first, and refuse to follow who lacks it."""


def planted(
    *gives_away: str, seeds_max: int = 100, kinds: tuple[str, ...] = (), schedule: str = ""
) -> Callable[[Patch], Patch]:
    """Put a bug among the others; it is found within so many seeds."""

    def put(patch: Patch) -> Patch:
        name = patch.__name__.replace("_", " ")
        assert not schedule or schedule in SCHEDULES, schedule
        PLANTS[name] = Plant(patch, frozenset(gives_away), seeds_max, kinds, schedule)
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
            if plant.schedule:
                findings = SCHEDULES[plant.schedule](seed).findings
            else:
                findings = played(seed, plant.kinds).findings
            if plant.gives_away & set(findings):
                return seed, findings
    return None, findings


# Commit


@planted(*LOST)
def one_replica_is_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit what the furthest has."""
    monkeypatch.setattr(leadership, "majority_end", max)


@planted(*LOST, kinds=("power cut of all", "slow disk"))
def what_is_written_counts_as_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica reports before its disk is done."""
    monkeypatch.setattr(ReplicaLog, "flushed_end", ReplicaLog.end)


@planted(*LACKING, schedule="a follower loses its power before its disk is done", seeds_max=10)
def a_follower_reports_what_it_then_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where it is known what came of it."""
    what_is_written_counts_as_flushed(monkeypatch)


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


@planted(
    "lost write", "false ack", schedule="a leader sleeps and wakes when another leads", seeds_max=3
)
def a_leader_that_slept_acknowledges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of one whose epoch is over."""
    a_leader_acknowledges_on_its_own(monkeypatch)


@planted("not on all")
def a_majority_counts_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the last replica."""
    monkeypatch.setattr(Replica, "flushed_by_all", Replica.committed_end)


@planted("lost write", schedule="a leader that was cut off follows another", seeds_max=3)
def who_waits_does_not_hear_that_a_leader_stepped_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' messages come to the offset that is waited for."""
    monkeypatch.setattr(Hosted, "fail_waiting", lambda self: None)


# Leaders


@planted(*LOST)
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


@planted(
    *LACKING, schedule="a voter starts anew between its promise and the new leader", seeds_max=3
)
def a_promise_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept in memory, and not on the disk. And a candidate must ask for it, for whoever reads
    the record anew would promise it again; alone it shows where that is an old one (below)."""

    def lax(self: Promises, promises: Any) -> None:
        self._kept.update(promises)

    def wrap(take_later: Any) -> Any:
        def asked(self: Election, record: Any, now_ms: int) -> Any:
            if record.state == "leading" or record.leader == self._me:
                return take_later(self, record, now_ms)
            self.end(f"{record.leader} has epoch {record.epoch}")
            return []

        return asked

    monkeypatch.setattr(Promises, "save", lax)
    swap(monkeypatch, Election, "_take_later", wrap)


@planted("two leaders", schedule="etcd is restored from an old copy", seeds_max=3)
def a_promise_is_only_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was promised is not there after a start; everything else is as it should be."""

    def lax(self: Promises, promises: Any) -> None:
        self._kept.update(promises)

    monkeypatch.setattr(Promises, "save", lax)


@planted("two leaders", schedule="etcd is restored from an old copy", seeds_max=3)
def an_epoch_is_promised_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks is promised it, and epochs that went back are believed."""

    def wrap(asked: Any) -> Any:
        def lax(self: Election, sender: Any, promise: Any) -> Any:
            if promise.epoch == self.epoch:
                self._candidate, self.leader, self._is_refusing = None, None, False
            return asked(self, sender, promise)

        return lax

    swap(monkeypatch, Election, "asked", wrap)


@planted(*LACKING, schedule="an entry of an older epoch is on a majority", seeds_max=3)
def what_is_older_than_the_epoch_is_committed_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raft, figure 8."""

    def wrap(advance: Any) -> Any:
        def lax(self: Leadership) -> Any:
            begins_at = self._begins_at
            self._begins_at = None if begins_at is None else Offset(0)
            try:
                return advance(self)
            finally:
                self._begins_at = begins_at

        return lax

    swap(monkeypatch, Leadership, "_advance", wrap)


# Replica sets


@planted(*LACKING, schedule="a disk is wiped that one of two copies was on", seeds_max=3)
def a_wiped_disk_comes_back_as_the_same_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node has a name that outlives its disk."""

    def wrap(wipe: Any) -> Any:
        def lax(self: Machine, disk_id: str) -> None:
            wipe(self, getattr(self, "disk_id", disk_id))

        return lax

    swap(monkeypatch, Machine, "wipe", wrap)


@planted(*LACKING, schedule="a log is removed that was one of two copies", seeds_max=3)
def an_empty_log_passes_for_the_one_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is gone is made anew, and nothing is noted."""
    monkeypatch.setattr(lost_log, "note_if_lost", lambda folder: False)


@planted(*LACKING, schedule="a log is removed that was one of two copies", seeds_max=3)
def a_lost_log_is_forgotten_by_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known to be lost only while the process runs that found it so."""

    def wrap(killed: Any) -> Any:
        def lax(self: Machine) -> None:
            killed(self)
            for folder in self.folders.values():
                if lost_log.NAME in folder.names():
                    folder.remove(lost_log.NAME)

        return lax

    swap(monkeypatch, Machine, "killed", wrap)


@planted("stuck", schedule="the log of a leader is removed", seeds_max=3)
def a_damaged_voter_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has it learn anew."""
    monkeypatch.setattr(Places, "_damaged", lambda self: None)


@planted("stuck", schedule="the log of a leader is removed", seeds_max=3)
def a_leader_whose_log_is_lost_does_not_resign(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its lease and its links, and nobody takes over."""
    monkeypatch.setattr(MajorityWatch, "resign", lambda self: [])


@planted(*LACKING, schedule="a leader has a learner and no voter", seeds_max=3)
def a_learner_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has flushed makes a majority."""

    def lax(self: Leadership, voters: Any) -> Offset:
        replicas = {*voters, *self.progress}
        ends = sorted(map(self.flushed_end_of, replicas), reverse=True)
        return ends[majority_of(voters) - 1]

    monkeypatch.setattr(Leadership, "flushed_by", lax)


@planted(*LACKING, schedule="a lost node is replaced by one that has nothing yet", seeds_max=3)
def a_replica_votes_before_it_has_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes the place of one that had all that was committed."""

    def wrap(flushed_end_of: Any) -> Any:
        def lax(self: Replica, replica: Any) -> Offset | None:
            known = flushed_end_of(self, replica)
            return None if known is None else max(known, self.committed_end)

        return lax

    def change_set(self: Replica, changed: Any, now_ms: int) -> Any:
        known = self._election.known
        is_led = self._leadership is not None and self._leadership.is_led
        if changed is None or not is_led or known.is_swapping:
            return []
        return self._settle(known.swap(changed), now_ms)

    swap(monkeypatch, Replica, "flushed_end_of", wrap)
    monkeypatch.setattr(Replica, "_change_set", change_set)


@planted("stuck", schedule="a lost node is replaced by one that has nothing yet", seeds_max=3)
def a_lost_node_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes its place."""
    monkeypatch.setattr(Placing, "_lost", lambda self: frozenset())


@planted("uneven", "stuck", schedule="a node joins and is given its share", seeds_max=3)
def replicas_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new node is given nothing."""
    monkeypatch.setattr(Places, "_is_better", lambda self, replica: False)


@planted("stuck", schedule="a node joins and is given its share", seeds_max=3)
def replicas_never_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """They move wherever there is no more than here."""

    def lax(self: Places, replica: Any) -> bool:
        return self.may_move and not self._learners and len(self._voters) == self.factor

    monkeypatch.setattr(Places, "_is_better", lax)


# Followers


@planted(*LOST)
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
