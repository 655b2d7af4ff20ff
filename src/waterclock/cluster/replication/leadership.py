"""What a leader does with its log: send it, count who has flushed it, commit.

An end is committed when a majority has flushed it, but only once it lies behind the frame with
which the epoch began: what is older may be on a majority and still be overwritten by a leader that
has never seen this epoch (Raft 5.4.2, figure 8).
"""

from typing import Final

from waterclock.cluster.replication.commit_point import CommitPoint
from waterclock.cluster.replication.effects import Effect, Led, Opened, Paused, Send, Stream
from waterclock.cluster.replication.election import Election
from waterclock.cluster.replication.log_view import LogView, ReplicaId
from waterclock.cluster.replication.messages import (
    Committed,
    Diverged,
    Fetch,
    Flushed,
    Frames,
    Leading,
    TakeOver,
    TooOld,
)
from waterclock.cluster.replication.progress import Progress
from waterclock.cluster.replication.voters import majority_end
from waterclock.model.ids import Offset

TRANSFER_MS: Final = 2_000
"""A leader that handed over and is not superseded by then leads on."""


class Leadership:
    """One epoch of one leader."""

    def __init__(
        self, me: ReplicaId, log_id: bytes, log: LogView, election: Election, commit: CommitPoint
    ) -> None:
        self.epoch = election.epoch
        self.is_open = False
        """Whether it takes publishes."""
        self.is_led = False
        """Whether the epoch's own frame is committed."""
        self.progress: dict[ReplicaId, Progress] = {}
        self._begins_at: Offset | None = None
        """Where that frame is, once it is written."""
        self._successor: ReplicaId | None = None
        self._transfer_until_ms: int | None = None
        self._me = me
        self._log_id = log_id
        self._log = log
        self._election = election
        self._commit = commit
        self._voter_sets: tuple[tuple[ReplicaId, ...], ...] = ()

    def __repr__(self) -> str:
        return f"<Leadership of epoch {self.epoch}, {list(self.progress.values())}>"

    def take_set(self) -> list[Effect]:
        """Lead the replicas that the record names now.

        While a swap of the set is in doubt there are two sets of voters, and both have to agree.
        """
        known = self._election.known
        assert known.record is not None
        self._voter_sets = known.voter_sets()
        before, self.progress = self.progress, {}
        for each in map(ReplicaId, (*known.record.replicas, *known.record.learners)):
            if each != self._me:
                self.progress[each] = before.get(each) or Progress(each)
        new = self.progress.keys() - before.keys()
        return [effect for each in sorted(new) for effect in self.linked(each)] + self._advance()

    def linked(self, peer: ReplicaId) -> list[Effect]:
        """Tell a replica that it may fetch here, and need not wait for news of the record."""
        if peer not in self.progress or peer not in self._election.peers.linked:
            return []
        return [Send(peer, Leading(self._log_id, self.epoch))]

    # Copying

    def appended(self) -> list[Effect]:
        """Send what was written."""
        if self._begins_at is not None:
            return self._pump_all()
        starts = self._log.lineage.starts
        if not starts or starts[-1].epoch != self.epoch:
            return []
        self._begins_at = starts[-1].offset
        return self.open() + self._pump_all() + self._advance()

    def fetched(self, sender: ReplicaId, fetch: Fetch) -> list[Effect]:
        """Answer a replica: it goes on from its claim, or learns why it cannot."""
        progress = self.progress.get(sender)
        if progress is None:
            return []  # it is in no set that we know of
        progress.close()
        progress.is_damaged = False  # nobody fetches on with a damaged log
        claim, log, head = fetch.claim, self._log, (self._log_id, self.epoch)
        answer = log.lineage.diverging(claim)
        if answer is not None:
            # What it has flushed counts for nothing: it is not known to be of this log.
            return [Send(sender, Diverged(*head, claim, answer))]
        if not any(sender in voters for voters in self._voter_sets):
            progress.flushed_end = Offset(0)  # a learner may have begun anew, with less
        progress.flushed(min(fetch.flushed_end, claim.end))
        effects = self._advance()
        if claim.end < log.stream_start:
            return [*effects, Send(sender, TooOld(*head, claim, log.stream_start))]
        progress.open(claim.end)
        stream = progress.pump(log.end)
        none = Frames(*head, claim.end, self._commit.end, b"")
        return [*effects, Send(sender, none) if stream is None else stream]

    def streamed(self, stream: Stream, next_offset: Offset, size: int) -> list[Effect]:
        """Send what follows on what was sent."""
        progress = self.progress.get(stream.to)
        if progress is None or not progress.sent(stream, next_offset, size):
            return []
        return self._pump(progress) if next_offset > stream.offset else []

    def overtaken(self, stream: Stream) -> list[Effect]:
        """Have a replica fetch anew: what it lacks was rewritten, and it must not get that."""
        progress = self.progress.get(stream.to)
        if progress is None or progress.stream is not stream:
            return []
        progress.close()
        return self.linked(stream.to)

    def peer_damaged(self, sender: ReplicaId) -> list[Effect]:
        """Count no more what a replica had flushed whose log is damaged, and send it nothing."""
        progress = self.progress.get(sender)
        if progress is None or progress.is_damaged:
            return []
        progress.damaged()
        # What it says may be late: if its log is whole by now, it fetches again.
        return self.linked(sender)

    @property
    def damaged(self) -> frozenset[ReplicaId]:
        """The replicas that told of damage and are not whole yet."""
        return frozenset(each.replica for each in self.progress.values() if each.is_damaged)

    def peer_flushed(self, sender: ReplicaId, flushed: Flushed) -> list[Effect]:
        """Count what a replica has flushed."""
        progress = self.progress.get(sender)
        if progress is None or flushed.epoch != self.epoch:
            return []
        progress.flushed(min(flushed.end, self._log.end))
        effects = self._advance() + self._pump(progress)
        return effects if self._successor is None else effects + self._hand_over()

    def _pump(self, progress: Progress) -> list[Effect]:
        stream = progress.pump(self._log.end)
        return [] if stream is None else [stream]

    def _pump_all(self) -> list[Effect]:
        end, effects = self._log.end, list[Effect]()
        for progress in self.progress.values():
            stream = progress.pump(end)
            if stream is not None:
                effects.append(stream)
        return effects

    # Committing

    def flushed_end_of(self, replica: ReplicaId) -> Offset:
        """Return what a replica has flushed of this log, as far as is known."""
        if replica == self._me:
            return self._log.flushed_end
        progress = self.progress.get(replica)
        return Offset(0) if progress is None else progress.flushed_end

    def flushed_by(self, voters: tuple[ReplicaId, ...]) -> Offset:
        """Return the end that a majority of these has flushed."""
        return majority_end(map(self.flushed_end_of, voters))

    def flushed_by_all(self) -> Offset:
        """Return the end that every voter has flushed."""
        return min(self.flushed_end_of(each) for voters in self._voter_sets for each in voters)

    def voters_behind(self, end: Offset) -> list[ReplicaId]:
        """Return the voters that have not flushed so much."""
        voters = {each for voters in self._voter_sets for each in voters}
        return sorted(each for each in voters if self.flushed_end_of(each) < end)

    def flushed(self) -> list[Effect]:
        """Count what this replica has flushed itself."""
        return self._advance()

    def _advance(self) -> list[Effect]:
        if self._begins_at is None:
            return []
        end = min(map(self.flushed_by, self._voter_sets))
        if end <= self._begins_at:
            return []
        effects = self._commit.advance(end)
        if not effects:
            return []
        if not self.is_led:
            self.is_led = True
            effects.append(Led(self.epoch))
        log_end = self._log.end
        for each in self.progress.values():
            if each.next_offset == log_end:  # else frames follow, and say so
                effects.append(Send(each.replica, Committed(self._log_id, self.epoch, end)))
        return effects

    # Publishes

    def reaches_majority(self) -> bool:
        """Say if as many are linked as it takes to commit."""
        return all(map(self._election.peers.reaches_majority, self._voter_sets))

    def open(self) -> list[Effect]:
        """Take publishes, if nothing is in the way."""
        if self.is_open or self._begins_at is None or self._successor is not None:
            return []
        if not self.reaches_majority():
            return []
        self.is_open = True
        return [Opened(self.epoch)]

    def pause(self, why: str, *, fails_waiting: bool) -> list[Effect]:
        """Take no publishes for now."""
        if not self.is_open:
            return []
        self.is_open = False
        return [Paused(why, fails_waiting)]

    # Handing over

    def best_successor(self) -> ReplicaId | None:
        """Return the voter that has most of the log, of those that copy it at this moment."""
        fetching = [each for each in self._voter_sets[0] if self.is_fetching(each)]
        return max(fetching, key=self.flushed_end_of, default=None)

    def transfer(self, to: ReplicaId, now_ms: int) -> list[Effect]:
        """Take no publishes until `to` has everything, then ask it to lead."""
        if not self.is_open or to not in self._voter_sets[0] or not self.is_fetching(to):
            return []
        self._successor, self._transfer_until_ms = to, now_ms + TRANSFER_MS
        return self.pause(f"it hands over to {to}", fails_waiting=False) + self._hand_over()

    def _hand_over(self) -> list[Effect]:
        successor = self._successor
        if successor is None or self.flushed_end_of(successor) < self._log.end:
            return []
        return [Send(successor, TakeOver(self._log_id, self.epoch))]

    def is_fetching(self, replica: ReplicaId) -> bool:
        """Say if a replica copies the log at this moment."""
        return replica in self.progress and self.progress[replica].next_offset is not None

    def tick(self, now_ms: int) -> list[Effect]:
        """Lead on if the successor did not take over."""
        if self._transfer_until_ms is None or now_ms < self._transfer_until_ms:
            return []
        self._successor = self._transfer_until_ms = None
        return self.open()

    def next_deadline(self) -> int | None:
        """Return when `tick` has something to do."""
        return self._transfer_until_ms
