"""Who leads the partition, under which epoch, and when this replica should be the one.

An epoch belongs to one candidate: it swaps the partition's record to the next one, and the
coordinator lets one swap win. Then it asks the voters to accept nothing below its epoch. Each makes
that promise durable before it answers, and says nothing under a lower epoch from then on; so what a
leader before may still commit is in one of the answers. The candidate leads if its log is the
greatest of a majority, else it asks the one that has the greatest to take over.
"""

from typing import Literal

from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.campaign import Campaign
from waterclock.cluster.replication.effects import Effect, Problem, SavePromise, Send, Swapped
from waterclock.cluster.replication.known_record import KnownRecord
from waterclock.cluster.replication.log_view import LogView, ReplicaId
from waterclock.cluster.replication.messages import Promise, Promised, Refused, TakeOver
from waterclock.cluster.replication.succession import CANDIDATE_MS, Peers, take_over_ms
from waterclock.model.ids import Epoch


class Election:
    """All that a replica knows of who leads."""

    def __init__(
        self, me: ReplicaId, log_id: bytes, log: LogView, promised: Epoch, candidate: str
    ) -> None:
        self.log: LogView | None = log
        """None while it is being cut or replaced: until then nothing can be said of it."""
        # A log bears witness, too: it took frames of an epoch that was promised then.
        self.epoch = max(promised, log.lineage.last.epoch)
        """The greatest that was promised: nothing is said or accepted under less."""
        self.leader: ReplicaId | None = None
        """Who leads under that epoch, as far as is known."""
        self.why_ended = ""
        """Why the last leader that was known does not lead any more."""
        self.known = KnownRecord()
        self.peers = Peers(me)
        self.campaign: Campaign | None = None
        self._me = me
        self._log_id = log_id
        self._saved = self.epoch
        self._heard = self.epoch
        """The greatest epoch that anybody spoke of: the record's must reach it."""
        self._read_for = Epoch(0)
        self._is_refusing = False
        is_named = bool(candidate) and promised == self.epoch
        self._candidate = ReplicaId(candidate) if is_named else None
        """To whom the epoch was promised, if that is known. A coordinator that was restored from
        an old copy may give it to another one as well."""
        self._asked_under = Epoch(0)
        self._asked_until_ms = 0
        """Then whoever asked leads on, or another takes over."""
        self._since_ms = 0
        self._abstains_until_ms = 0
        self._timers: dict[Literal["take over", "campaign"], int] = {}

    def __repr__(self) -> str:
        return f"<Election {self._me} in epoch {self.epoch}, led by {self.leader}>"

    @property
    def is_saved(self) -> bool:
        """Whether the promise is durable: before it is, nothing is said under the epoch."""
        return self._saved >= self.epoch

    @property
    def is_member(self) -> bool:
        """Whether this replica has to copy the log."""
        record = self.known.record
        return record is not None and self._me in (*record.replicas, *record.learners)

    @property
    def is_voter(self) -> bool:
        """Whether it counts, and can lead."""
        record = self.known.record
        return record is not None and self._me in record.replicas

    # The record

    def record_changed(
        self, record: PartitionRecord | None, revision: Revision, now_ms: int
    ) -> list[Effect]:
        """Take the record as a watch has it; late or twice does no harm."""
        is_first = self.known.revision == 0
        if not self.known.changed(record, revision):
            return []
        effects = self._take_record(now_ms)
        if is_first and record is not None and record.epoch < self.epoch:
            effects += self._read()
        return effects

    def record_read(
        self, record: PartitionRecord | None, revision: Revision, now_ms: int
    ) -> list[Effect]:
        """Take the record as it was when it was asked for."""
        read_for = self._read_for  # below it may be read again, for an epoch heard of since
        is_news, effects = self.known.was_read(record, revision)
        if is_news:
            effects += self._take_record(now_ms)
        if record is not None and record.epoch < read_for and not self._is_refusing:
            # The epoch came from the coordinator before this was read. It must not be given out
            # twice: whoever led under it may have committed what the next leader would not have.
            self._is_refusing = True
            problem = f"epoch {read_for} was given out, the coordinator is at {record.epoch}"
            effects.append(Problem(f"{problem}: it was restored from an old copy"))
        return effects + self.consider(now_ms)

    def swapped(self, outcome: Swapped, now_ms: int) -> list[Effect]:
        """Take the outcome of the swap under way."""
        is_news, effects = self.known.swapped(outcome)
        return effects + (self._take_record(now_ms) if is_news else self.consider(now_ms))

    def _read(self) -> list[Effect]:
        if not self.known.is_reading:
            self._read_for = self._heard
        return self.known.read()

    def _take_record(self, now_ms: int) -> list[Effect]:
        self._since_ms = now_ms
        self._timers.pop("take over", None)
        record = self.known.record
        if record is None or not self.is_member:
            self.end("it is no replica any more")
            return []
        self._heard = max(self._heard, Epoch(record.epoch))
        effects: list[Effect] = []
        if record.epoch > self.epoch:
            effects = self._take_later(record, now_ms)
        elif record.epoch == self.epoch and record.state == "leading":
            effects = self.follow(self.epoch, ReplicaId(record.leader))
        return effects + self.consider(now_ms)

    def _take_later(self, record: PartitionRecord, now_ms: int) -> list[Effect]:
        """Take a record of an epoch that is not promised here yet."""
        self._is_refusing = False
        epoch, leader = Epoch(record.epoch), ReplicaId(record.leader)
        self.end(f"{leader} has epoch {epoch}")
        if leader != self._me:
            if record.state == "leading":
                return self.follow(epoch, leader)
            # It may have asked for the promise before this replica was there to hear it.
            return self._promise(epoch, leader) if self.is_voter else []
        if record.state == "candidate" and self.log is not None and not self.log.is_faulty:
            # Its own swap, perhaps one that was in doubt or of a process before this one: nobody
            # else has the epoch, and nobody was asked to lead under it.
            return self._stand(epoch, now_ms)
        return []

    # Promises

    def follow(self, epoch: Epoch, leader: ReplicaId) -> list[Effect]:
        """Take a replica for the leader of an epoch, which is promised if it was not."""
        if leader == self._me:
            # Only a candidate that is still there leads on: another process knew the answers.
            if self.campaign is None and self.leader != self._me:
                return []
            self.campaign = None
            self._timers.pop("campaign", None)
        elif epoch == self.epoch and self._candidate not in (None, leader):
            return [Problem(f"epoch {epoch} is that of {leader} and of {self._candidate}")]
        effects = self._name(leader) if epoch == self.epoch else self._promise(epoch, leader)
        self.leader = leader
        return effects

    def _promise(self, epoch: Epoch, candidate: ReplicaId) -> list[Effect]:
        """Say nothing under less from now on; others hear of it when it is durable."""
        assert epoch > self.epoch, (epoch, self.epoch)
        self.end(f"{candidate} has epoch {epoch}")
        self.epoch, self._candidate = epoch, candidate
        self._heard = max(self._heard, epoch)
        return [SavePromise(epoch, candidate)]

    def _name(self, candidate: ReplicaId) -> list[Effect]:
        """Keep to whom the epoch is promised, if that was not known."""
        if self._candidate is not None:
            return []
        self._candidate, self._saved = candidate, Epoch(self.epoch - 1)
        return [SavePromise(self.epoch, candidate)]

    def end(self, why: str) -> None:
        """Know of no leader any more, and be no candidate."""
        self.leader = self.campaign = None
        self.why_ended = why
        self._timers.pop("campaign", None)

    def give_up(self, why: str, now_ms: int) -> None:
        """Lead no more, and let others try first."""
        self.end(why)
        self._abstains_until_ms = now_ms + 2 * CANDIDATE_MS

    def asked(self, sender: ReplicaId, promise: Promise) -> list[Effect]:
        """Promise a candidate its epoch; it is answered when that is durable."""
        if promise.epoch > self.epoch:
            return self._promise(promise.epoch, sender)
        is_known = self._candidate in (None, sender) and self.leader in (None, sender)
        if promise.epoch < self.epoch or not is_known or self._is_refusing:
            return [Send(sender, Refused(self._log_id, promise.epoch, self.epoch))]
        return self._name(sender) + self.answer()

    def answer(self) -> list[Effect]:
        """Answer the candidate, once that can be done; twice does no harm."""
        candidate, log = self._candidate, self.log
        if candidate in (None, self._me) or self.leader is not None:
            return []
        if not self.is_saved or log is None:
            return []
        assert candidate is not None
        promised = Promised(self._log_id, self.epoch, log.flushed_last, log.is_faulty)
        return [Send(candidate, promised)]

    def promise_saved(self, epoch: Epoch) -> list[Effect]:
        """Note that a promise is durable."""
        self._saved = max(self._saved, epoch)
        if self.campaign is not None and self.campaign.epoch == epoch:
            self.campaign.has_own_promise = True
            return self._decide()
        return self.answer() if epoch == self.epoch else []

    def refused(self, refused: Refused) -> list[Effect]:
        """Learn that somebody promised more than this replica's own epoch."""
        is_own = self.campaign is not None or self.leader == self._me
        if not is_own or refused.epoch != self.epoch:
            return []
        self._heard = max(self._heard, refused.promised)
        self.end(f"a replica has promised epoch {refused.promised}")
        if refused.promised == self.epoch:
            self._is_refusing = True
            return [Problem(f"epoch {self.epoch} was given out twice: see to the coordinator")]
        return self._read()

    # Taking over

    def consider(self, now_ms: int) -> list[Effect]:
        """Take over if it is time, or note when it will be."""
        due_ms = self._take_over_ms(now_ms)
        due_ms = min(due_ms, self._timers.get("take over", due_ms)) if due_ms is not None else None
        self._timers.pop("take over", None)
        if due_ms is None:
            return []
        if due_ms > now_ms:
            self._timers["take over"] = due_ms
            return []
        record = self.known.record
        assert record is not None
        if record.epoch < self._heard:
            return self._read()  # the watch is late, or epochs went back
        return self.known.swap(record.taken_over(self._me))

    def _take_over_ms(self, now_ms: int) -> int | None:
        record = self.known.record
        if record is None or self.campaign is not None or self.leader == self._me:
            return None
        if self.log is None or self.log.is_faulty or self._is_refusing:
            return None
        if self.known.is_swapping or self.known.is_reading:
            return None
        is_asked = self._asked_under >= record.epoch and now_ms < self._asked_until_ms
        if is_asked and self.is_voter and self.peers.reaches_majority(record.replicas):
            return now_ms
        since_ms = self._since_ms
        due_ms = take_over_ms(record, self._me, self.peers, since_ms=since_ms, now_ms=now_ms)
        return due_ms if due_ms is None else max(due_ms, self._abstains_until_ms)

    def asked_to_lead(self, take_over: TakeOver, now_ms: int) -> list[Effect]:
        """Take over at once: a leader hands over, or a candidate found this log the greatest."""
        if take_over.epoch < self.epoch:
            return []
        self._asked_under = take_over.epoch
        self._asked_until_ms = now_ms + CANDIDATE_MS
        return self.consider(now_ms)

    def _stand(self, epoch: Epoch, now_ms: int) -> list[Effect]:
        """Stand as the candidate of an epoch that the coordinator gave to this replica."""
        effects = self._promise(epoch, self._me)
        self.campaign = Campaign(self._me, epoch)
        self._asked_until_ms = 0
        self._timers["campaign"] = now_ms + CANDIDATE_MS
        record = self.known.record
        assert record is not None
        linked = [ReplicaId(each) for each in record.replicas if each in self.peers.linked]
        return effects + [Send(each, Promise(self._log_id, epoch)) for each in linked]

    def promised(self, sender: ReplicaId, promised: Promised) -> list[Effect]:
        """Count the answer of a voter."""
        if self.campaign is None or promised.epoch != self.campaign.epoch:
            return []
        self.campaign.answered(sender, promised)
        return self._decide()

    def _decide(self) -> list[Effect]:
        campaign, record, log = self.campaign, self.known.record, self.log
        if campaign is None or record is None or log is None or self.known.is_swapping:
            return []
        voters = tuple(map(ReplicaId, record.replicas))
        greatest = campaign.greatest(voters, log.lineage.last)
        if greatest is None:
            return []
        if greatest != self._me:
            return [Send(greatest, TakeOver(self._log_id, self.epoch))]
        return self.known.swap(record.led())

    def linked(self, peer: ReplicaId) -> list[Effect]:
        """Say again what a peer may not have heard."""
        record, campaign = self.known.record, self.campaign
        if campaign is None:
            return self.answer() if peer == self._candidate else []
        is_open = (
            record is not None and peer in record.replicas and not campaign.has_answer_of(peer)
        )
        return [Send(peer, Promise(self._log_id, campaign.epoch))] if is_open else []

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""
        if self._timers.get("campaign", now_ms + 1) <= now_ms:
            self._timers["campaign"] = now_ms + CANDIDATE_MS
            if not self.known.is_swapping:
                # Nobody answered in time, or the one that should lead does not: try again, later.
                self.end("nobody answered")
        return self.consider(now_ms)

    def next_deadline(self) -> int | None:
        """Return when `tick` has something to do."""
        return min(self._timers.values()) if self._timers else None
