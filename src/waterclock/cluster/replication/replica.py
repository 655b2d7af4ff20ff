"""One partition on one node: the whole of its replication, without any IO.

It is told what happened and answers with what to do. Perform the effects in their order, before the
next event.

    record in the coordinator ─> whose turn is it? (`succession`) ─> swap to epoch + 1
      ─> ask for promises (`election`, `campaign`) ─> greatest log of a majority: swap to leading
      ─> write the epoch's frame, send, count, commit (`leadership`, `progress`)
    another leads ─> promise its epoch, claim, copy, be cut where the logs part (`following`)

Two rules carry it: a replica that promised an epoch says nothing under a lower one, and only what
is flushed counts. Leases, links and late news decide when somebody tries, and nothing else.
"""

from typing import Final, Literal, assert_never

from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.commit_point import CommitPoint
from waterclock.cluster.replication.effects import (
    BeginEpoch,
    CommitTo,
    Effect,
    Problem,
    Replace,
    Send,
    SteppedDown,
    Stream,
    Swapped,
    Truncate,
)
from waterclock.cluster.replication.election import Election
from waterclock.cluster.replication.following import Following
from waterclock.cluster.replication.leadership import Leadership
from waterclock.cluster.replication.log_view import LogView, ReplicaId
from waterclock.cluster.replication.majority_watch import LEASE_MS, MajorityWatch
from waterclock.cluster.replication.messages import (
    Committed,
    Diverged,
    Fetch,
    Flushed,
    Frames,
    Leading,
    Message,
    Promise,
    Promised,
    Refused,
    TakeOver,
    TooOld,
)
from waterclock.cluster.replication.replica_set import (
    leader_preferred,
    learner_added,
    learner_promoted,
    replica_removed,
    voter_demoted,
    voters_of,
)
from waterclock.model.ids import Epoch, Offset

Role = Literal["idle", "follower", "learner", "candidate", "leader"]

RETRY_MS: Final = 1_000
"""After a disk refused what the leader sent, until it is asked for again."""


class Replica:
    """A replica of the log, in whatever role the partition's record and its peers give it."""

    def __init__(
        self,
        me: ReplicaId,
        log_id: bytes,
        log: LogView,
        *,
        promised: Epoch,
        candidate: str = "",
        lease_ms: int = LEASE_MS,
    ) -> None:
        """Take up a log that was just opened. `promised` and `candidate` are what was saved last,
        else 0 and empty; a leader that is without a majority for `lease_ms` leads no more."""
        self.me = me
        self.log_id = log_id
        self.log = log
        self._commit = CommitPoint()
        self._election = Election(me, log_id, log, promised, candidate)
        self._leadership: Leadership | None = None
        self._following: Following | None = None
        self._majority_watch = MajorityWatch(me, self._election, lease_ms)
        self._fetch_at_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Replica {self.me} {self.role}, epoch {self.epoch}, to {self.committed_end}>"

    @property
    def committed_end(self) -> Offset:
        """Everything below this is committed, as far as is known here."""
        return self._commit.end

    @property
    def is_open(self) -> bool:
        """Whether it takes publishes: it leads, its epoch's frame is written, it has a majority."""
        return self._leadership is not None and self._leadership.is_open

    @property
    def epoch(self) -> Epoch:
        """The greatest that was promised: nothing is said or accepted under less."""
        return self._election.epoch

    @property
    def leader(self) -> ReplicaId | None:
        """Who leads under that epoch, as far as is known."""
        return self._election.leader

    @property
    def record(self) -> PartitionRecord | None:
        """The partition's record, as far as is known."""
        return self._election.known.record

    @property
    def role(self) -> Role:
        """What this replica is to the partition now."""
        if self._leadership is not None:
            return "leader"
        if self._election.campaign is not None:
            return "candidate"
        if self._election.is_voter:
            return "follower"
        return "learner" if self._election.is_member else "idle"

    @property
    def flushed_by_all(self) -> Offset:
        """What every voter has flushed, as far as the leader knows."""
        return self._leadership.flushed_by_all() if self._leadership is not None else Offset(0)

    def voters_behind(self, end: Offset) -> list[ReplicaId]:
        """Return the voters that have not flushed so much, as far as the leader knows."""
        return [] if self._leadership is None else self._leadership.voters_behind(end)

    @property
    def damaged(self) -> frozenset[ReplicaId]:
        """The replicas whose logs are damaged, as far as the leader knows."""
        return frozenset() if self._leadership is None else self._leadership.damaged

    def flushed_end_of(self, replica: ReplicaId) -> Offset | None:
        """Return what a replica has flushed, as far as the leader knows; None on any other."""
        return None if self._leadership is None else self._leadership.flushed_end_of(replica)

    # What happened to the record

    def record_changed(
        self, record: PartitionRecord | None, revision: Revision, now_ms: int
    ) -> list[Effect]:
        """Take the record as a watch has it; late or twice does no harm."""
        return self._settle(self._election.record_changed(record, revision, now_ms), now_ms)

    def record_read(
        self, record: PartitionRecord | None, revision: Revision, now_ms: int
    ) -> list[Effect]:
        """Take the answer to `ReadRecord`. `revision` is the key's, or the store's if none is."""
        return self._settle(self._election.record_read(record, revision, now_ms), now_ms)

    def swapped(self, outcome: Swapped, now_ms: int) -> list[Effect]:
        """Take the outcome of the `Swap` under way."""
        return self._settle(self._election.swapped(outcome, now_ms), now_ms)

    def promise_saved(self, epoch: Epoch, now_ms: int) -> list[Effect]:
        """Note that the promise is durable."""
        return self._settle(self._election.promise_saved(epoch), now_ms)

    # What happened to peers

    def alive_changed(self, alive: frozenset[ReplicaId], now_ms: int) -> list[Effect]:
        """Take the replicas whose node has a lease, and the same disk."""
        self._election.peers.alive = alive
        return self._settle(self._election.consider(now_ms), now_ms)

    def gone(self, peer: ReplicaId, now_ms: int) -> list[Effect]:
        """Note that a peer's process is no more: it refused the dial. No lease need run out."""
        self._election.peers.gone.add(peer)
        return self._settle(self._election.consider(now_ms), now_ms)

    def link_up(self, peer: ReplicaId, now_ms: int) -> list[Effect]:
        """Note that messages to a peer pass from now on, and that those before may be lost."""
        peers = self._election.peers
        peers.linked.add(peer)
        peers.gone.discard(peer)
        effects = self._election.linked(peer)
        if self._leadership is not None:
            effects += self._leadership.linked(peer)
        if self._following is not None and peer == self._following.leader:
            self._following.is_due = True
        return self._settle(effects + self._election.consider(now_ms), now_ms)

    def link_down(self, peer: ReplicaId, now_ms: int, *, silent_ms: int = 0) -> list[Effect]:
        """Note that what was under way to a peer and from it is lost, and for how long nothing had
        come over the link before."""
        self._election.peers.linked.discard(peer)
        effects = self._majority_watch.look(self._leadership, now_ms, silent_ms=silent_ms)
        if self._leadership is not None and peer in self._leadership.progress:
            self._leadership.progress[peer].close()
        return self._settle(effects + self._election.consider(now_ms), now_ms)

    def received(self, sender: ReplicaId, message: Message, now_ms: int) -> list[Effect]:
        """Take a message of a peer."""
        match message:
            case Flushed():
                leadership = self._leadership
                return [] if leadership is None else leadership.peer_flushed(sender, message)
            case Frames() | Committed() | Leading():
                return self._heard_of_leader(sender, message, now_ms)
            case Fetch():
                return self._fetched(sender, message)
            case Diverged() | TooOld():
                return self._cannot_follow(sender, message)
            case Promise():
                effects = self._election.asked(sender, message)
            case Promised():
                if message.is_faulty and self._leadership and message.epoch == self.epoch:
                    return self._leadership.peer_damaged(sender)
                effects = self._election.promised(sender, message)
            case Refused():
                effects = self._election.refused(message)
            case TakeOver():
                effects = self._election.asked_to_lead(message, now_ms)
            case _:
                assert_never(message)
        return self._settle(effects, now_ms)

    # What happened to the log

    def appended(self, now_ms: int) -> list[Effect]:
        """Note that the log grew: by publishes, the epoch's frame or the leader's frames."""
        if self._leadership is not None:
            return self._leadership.appended()
        if self._following is not None and self._election.log is not None:
            return self._following.appended(self.log)
        return []

    def append_failed(self, why: str, now_ms: int) -> list[Effect]:
        """Note that `Append` or `BeginEpoch` could not be done; some of it may be written."""
        if self._leadership is not None:
            return [Problem(why), *self._give_up(f"its log refused a frame: {why}", now_ms)]
        if self._following is not None:
            self._following.lose()
            self._fetch_at_ms = now_ms + RETRY_MS
        return [Problem(why)]

    def flushed(self, now_ms: int) -> list[Effect]:
        """Note that the log's `flushed_end` moved."""
        if self._leadership is not None:
            return self._leadership.flushed()
        if self._following is not None and self._election.log is not None:
            return self._following.flushed(self.log)
        return []

    def faulted(self, now_ms: int) -> list[Effect]:
        """Note that the log's `is_faulty` became true."""
        problem = Problem("the log is damaged: this replica neither votes nor leads")
        if self._following is None:
            return [problem, *self._give_up("its log is damaged", now_ms)]
        self._following.is_due = True
        return [problem, *self._fetch()]

    def copied(self, source: ReplicaId, now_ms: int) -> list[Effect]:
        """Note that what `Install` asked for is there; it is used unless things have changed."""
        following, election = self._following, self._election
        if following is None or not following.is_copying or following.leader != source:
            return []
        following.is_copying = False
        election.log = None
        return [Replace()]

    def copy_failed(self, source: ReplicaId, now_ms: int) -> list[Effect]:
        """Note that `Install` could not be done: it is asked for again, a little later."""
        following = self._following
        if following is not None and following.is_copying and following.leader == source:
            self._fetch_at_ms = now_ms + RETRY_MS
        return []

    def reopened(self, log: LogView, now_ms: int) -> list[Effect]:
        """Take up the log again, after `Truncate` or `Replace`."""
        self.log = self._election.log = log
        # A learner's that was damaged begins anew, with less.
        self._commit.end = min(self._commit.end, log.end)
        if self._following is not None:
            self._following.is_due = True
        end = self._commit.end
        effects: list[Effect] = [CommitTo(end)] if end else []
        effects += self._election.answer() + self._election.consider(now_ms)
        return self._settle(effects, now_ms)

    def install_failed(self, now_ms: int) -> list[Effect]:
        """Note that `Replace` could not be done: the log is what it was, and a copy is asked for
        again a little later."""
        self._election.log, self._fetch_at_ms = self.log, now_ms + RETRY_MS
        effects = self._election.answer() + self._election.consider(now_ms)
        return self._settle(effects, now_ms)

    def streamed(self, stream: Stream, next_offset: Offset, size: int, now_ms: int) -> list[Effect]:
        """Note that a `Stream` was performed, the object itself, up to an offset."""
        leadership = self._leadership
        return [] if leadership is None else leadership.streamed(stream, next_offset, size)

    def overtaken(self, stream: Stream, now_ms: int) -> list[Effect]:
        """Note that what a `Stream` was to send has been rewritten, and was not sent."""
        leadership = self._leadership
        return [] if leadership is None else leadership.overtaken(stream)

    # Time

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""
        effects = self._majority_watch.tick(self._leadership, now_ms)
        if self._fetch_at_ms is not None and self._fetch_at_ms <= now_ms:
            self._fetch_at_ms = None
            if self._following is not None:
                self._following.is_due = True
        if self._leadership is not None:
            effects += self._leadership.tick(now_ms)
        return self._settle(effects + self._election.tick(now_ms), now_ms)

    def next_deadline(self) -> int | None:
        """Return when `tick` has something to do; None while nothing is about to change."""
        leadership = self._leadership
        deadlines_ms = (
            self._fetch_at_ms,
            self._election.next_deadline(),
            self._majority_watch.next_deadline(),
            None if leadership is None else leadership.next_deadline(),
        )
        return min((each for each in deadlines_ms if each is not None), default=None)

    def check_invariants(self) -> None:
        """Check that it is one thing at a time, and under the epoch that is promised."""
        election, leadership, following = self._election, self._leadership, self._following
        if leadership is not None:
            assert (election.leader, election.epoch) == (self.me, leadership.epoch), election
            assert election.is_saved, election
            assert election.campaign is None, election
        if following is not None:
            assert (leadership, election.campaign) == (None, None), following
            assert election.leader not in (None, self.me), election
            assert (following.leader, following.epoch) == (election.leader, election.epoch)
        if election.log is not None:
            assert self.committed_end <= self.log.end, self

    # What the leader's owner wants

    def add_learner(self, replica: ReplicaId, now_ms: int) -> list[Effect]:
        """Have one more replica copy the log. Nothing is done unless it can be done now."""
        return self._change_set(learner_added(self.record, replica), now_ms)

    def promote(self, learner: ReplicaId, now_ms: int) -> list[Effect]:
        """Have a learner vote, if it has all that is committed, and is there: it would make the
        majority larger, and help nobody to reach it."""
        leadership, known = self._leadership, self.flushed_end_of(learner)
        if leadership is None or not leadership.is_fetching(learner):
            return []
        if known is None or known < self.committed_end:
            return []
        return self._change_set(learner_promoted(self.record, learner), now_ms)

    def remove(self, replica: ReplicaId, now_ms: int) -> list[Effect]:
        """Have a replica copy the log no more; a leader that removes itself hands over first."""
        if replica == self.me:
            return self.hand_over(now_ms)
        return self._change_set(replica_removed(self.record, replica), now_ms)

    def demote(self, voter: ReplicaId, now_ms: int) -> list[Effect]:
        """Have a replica copy the log and vote no more; a leader hands over first."""
        if voter == self.me:
            return self.hand_over(now_ms)
        return self._change_set(voter_demoted(self.record, voter), now_ms)

    def prefer(self, voter: ReplicaId, now_ms: int) -> list[Effect]:
        """Have a replica be the preferred leader; it leads when it is handed that."""
        return self._change_set(leader_preferred(self.record, voter), now_ms)

    def _change_set(self, changed: PartitionRecord | None, now_ms: int) -> list[Effect]:
        leadership, known = self._leadership, self._election.known
        if changed is None or leadership is None or known.is_swapping:
            return []
        # Sets change one at a time, and each begins with a majority that has all that is committed:
        # so does every majority that a later leader is elected by.
        has_all = leadership.flushed_by(voters_of(changed)) >= self.committed_end
        if not leadership.is_led or not has_all:
            return []
        return self._settle(known.swap(changed), now_ms)

    def transfer(self, to: ReplicaId, now_ms: int) -> list[Effect]:
        """Hand leadership over: take no publishes until `to` has everything, then ask it."""
        return [] if self._leadership is None else self._leadership.transfer(to, now_ms)

    def hand_over(self, now_ms: int) -> list[Effect]:
        """Hand leadership over to whoever has most; nothing is done if nobody can take it now."""
        successor = self._leadership.best_successor() if self._leadership is not None else None
        return [] if successor is None else self.transfer(successor, now_ms)

    # What follows from it

    def _settle(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """Be what the election says."""
        election, leadership = self._election, self._leadership
        leader, epoch = election.leader, election.epoch
        if leadership is not None and (leader != self.me or epoch != leadership.epoch):
            # Before anything else happens to the log: those who wait for an offset of it would take
            # another leader's message there for their own.
            self._leadership = None
            effects.append(SteppedDown(election.why_ended))
        if leader == self.me:
            self._following = None
            effects += self._lead()
        elif leader is None:
            self._following = None
        elif self._following is None or self._following.is_other(leader, epoch):
            self._following = Following(self.log_id, epoch, leader, self._commit)
        return effects + self._fetch() + self._majority_watch.look(self._leadership, now_ms)

    def _lead(self) -> list[Effect]:
        if self._leadership is not None:
            return self._leadership.take_set()
        election = self._election
        self._leadership = Leadership(self.me, self.log_id, self.log, election, self._commit)
        return [BeginEpoch(election.epoch), *self._leadership.take_set()]

    def _fetched(self, sender: ReplicaId, fetch: Fetch) -> list[Effect]:
        if fetch.epoch < self.epoch:
            return [Send(sender, Refused(self.log_id, fetch.epoch, self.epoch))]
        if self._leadership is None or fetch.epoch != self.epoch:
            return []  # it is told when it may fetch here
        return self._leadership.fetched(sender, fetch)

    def _give_up(self, why: str, now_ms: int) -> list[Effect]:
        """Lead no more, and have another do it."""
        successor = self._leadership.best_successor() if self._leadership is not None else None
        effects: list[Effect] = []
        if successor is not None:
            effects.append(Send(successor, TakeOver(self.log_id, self.epoch)))
        self._election.give_up(why, now_ms)
        return self._settle(effects + self._majority_watch.resign(), now_ms)

    # Following

    def _fetch(self) -> list[Effect]:
        """Ask the leader for what follows, if that is due and can be done."""
        following, election = self._following, self._election
        if following is None or election.log is None:
            return []
        if not election.is_saved or following.leader not in election.peers.linked:
            return []
        if self.log.is_faulty:
            return self._learn_anew(following)
        return following.fetch(self.log) if following.is_due else []

    def _learn_anew(self, following: Following) -> list[Effect]:
        """Tell the leader of the damage; begin with a copy of its log, once nobody counts on this
        one: until then it might lack, once mended, what it had told to be flushed."""
        effects = following.tell_damage(self.log) if following.is_due else []
        is_under_way = following.is_copying and not effects
        if self._election.is_voter or is_under_way or self._fetch_at_ms is not None:
            return effects
        return effects + following.copy()

    def _heard_of_leader(
        self, sender: ReplicaId, message: Frames | Committed | Leading, now_ms: int
    ) -> list[Effect]:
        following, election = self._following, self._election
        if message.epoch < election.epoch:
            return [Send(sender, Refused(self.log_id, message.epoch, election.epoch))]
        if following is None or following.is_other(sender, message.epoch):
            if not election.is_member:
                return []
            return self._settle(election.follow(message.epoch, sender), now_ms)
        if not election.is_saved or election.log is None:
            return []  # it fetches when it can
        if self.log.is_faulty and not isinstance(message, Leading):
            return [] if following.is_copying else following.tell_damage(self.log)
        match message:
            case Frames():
                return following.frames(message, self.log)
            case Committed():
                return following.committed(message.end, self.log)
            case Leading():
                following.is_due = True
                return self._fetch()
            case _:
                assert_never(message)

    def _cannot_follow(self, sender: ReplicaId, message: Diverged | TooOld) -> list[Effect]:
        following, election = self._following, self._election
        if following is None or following.is_other(sender, message.epoch) or election.log is None:
            return []
        effects = following.answered(message, self.log)
        if any(isinstance(each, Truncate) for each in effects):
            election.log = None
        return effects
