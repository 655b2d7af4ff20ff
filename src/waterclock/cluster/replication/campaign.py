"""A candidate and the answers to it.

With the answers of a majority, that of the candidate among them, every committed message is in the
log of one of them: the one whose end is the greatest has them all (Raft 5.4.1). What others report
is what they have flushed. The candidate's own log counts as it is written: it needs not be durable
for it to be sent on, and nothing is committed by it before it is flushed.
"""

from waterclock.cluster.replication.lineage import EpochEnd
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Promised
from waterclock.cluster.replication.voters import majority_of
from waterclock.model.ids import Epoch


class Campaign:
    """One epoch of one candidate."""

    def __init__(self, me: ReplicaId, epoch: Epoch) -> None:
        self.epoch = epoch
        self.has_own_promise = False
        self._me = me
        self._answers: dict[ReplicaId, Promised] = {}

    def __repr__(self) -> str:
        return f"<Campaign of epoch {self.epoch}, {len(self._answers)} answers>"

    def answered(self, sender: ReplicaId, answer: Promised) -> None:
        """Take the answer of a replica."""
        self._answers[sender] = answer

    def has_answer_of(self, replica: ReplicaId) -> bool:
        """Say if a replica need not be asked again."""
        return replica in self._answers

    def greatest(self, voters: tuple[ReplicaId, ...], own: EpochEnd) -> ReplicaId | None:
        """Return which replica has to lead; None: a majority has not answered."""
        ends = {
            each: self._answers[each].last
            for each in voters
            # A damaged log is no evidence of what was committed.
            if each in self._answers and not self._answers[each].is_faulty
        }
        if self.has_own_promise:
            ends[self._me] = own
        if not self.has_own_promise or len(ends) < majority_of(voters):
            return None
        best = max(ends.values())
        return self._me if own >= best else max(ends, key=ends.__getitem__)
