"""What a replica does that copies the log of a leader.

It claims what it has. The leader sends what follows, or says where their logs part; then the log is
cut there, and the next claim is made: after several leaders that came and went quickly it may take
some rounds (KIP-279). Once a claim holds, the log is a beginning of the leader's and stays that as
long as the epoch lasts, also when the process starts anew.

So whatever the leader says of its log to a replica whose claim held is true for ever. `Frames` are
taken exactly when they follow on the log's end, over whichever connection they came.
"""

from waterclock.cluster.replication.commit_point import CommitPoint
from waterclock.cluster.replication.effects import (
    Append,
    Effect,
    Install,
    Problem,
    Send,
    Truncate,
)
from waterclock.cluster.replication.lineage import EpochEnd
from waterclock.cluster.replication.log_view import LogView, ReplicaId
from waterclock.cluster.replication.messages import (
    Diverged,
    Fetch,
    Flushed,
    Frames,
    Promised,
    TooOld,
)
from waterclock.model.ids import Epoch, Offset


class Following:
    """A replica under one leader and epoch. Make one only when the epoch's promise is durable."""

    def __init__(self, log_id: bytes, epoch: Epoch, leader: ReplicaId, commit: CommitPoint) -> None:
        self.epoch = epoch
        self.leader = leader
        self.is_due = True
        """Whether the leader has to be asked anew: it never was, or the stream was lost."""
        self._commit_end = Offset(0)
        """What the leader said is committed; the log may not go so far yet."""
        self._commit = commit
        self._log_id = log_id
        self._claim: EpochEnd | None = None
        self._is_matched = False
        """Whether the log is known to be a beginning of the leader's."""
        self._reported = Offset(0)
        self.is_copying = False
        """Whether what the leader has rewritten is being copied; the log stays as it is."""

    def __repr__(self) -> str:
        return f"<Following {self.leader}, epoch {self.epoch}, {self._claim or self._reported}>"

    def is_other(self, leader: ReplicaId, epoch: Epoch) -> bool:
        """Say if this is about another leader or epoch."""
        return epoch != self.epoch or leader != self.leader

    def fetch(self, log: LogView) -> list[Effect]:
        """Claim what the log has, and ask for what follows."""
        self.is_due = self.is_copying = False
        self._claim = log.lineage.last
        self._reported = log.flushed_end
        fetch = Fetch(self._log_id, self.epoch, self._claim, log.flushed_end)
        return [Send(self.leader, fetch)]

    def lose(self) -> None:
        """Note that frames could not be written: what follows on them is of no use."""
        self._claim = None

    def frames(self, frames: Frames, log: LogView) -> list[Effect]:
        """Take frames that follow on the log's end; others are of a stream that is no more."""
        if self.is_copying:
            return []  # of a stream that is no more
        if frames.base_offset != log.end:
            # The leader may believe that this is what we asked for: ask again, once.
            return [] if self._claim is not None else self.fetch(log)
        self._claim, self._is_matched = None, True
        self._commit_end = max(self._commit_end, frames.commit_end)
        return [Append(frames.data, self.epoch)] if len(frames.data) else self.appended(log)

    def committed(self, end: Offset, log: LogView) -> list[Effect]:
        """Take what is committed. The leader says so when it has sent all below it."""
        self._is_matched = True
        self._commit_end = max(self._commit_end, end)
        if end > log.end and self._claim is None:
            return self.fetch(log)
        return self.appended(log)

    def appended(self, log: LogView) -> list[Effect]:
        """Show what of the log is committed; the leader says so only once a claim held."""
        return self._commit.advance(min(self._commit_end, log.end))

    def flushed(self, log: LogView) -> list[Effect]:
        """Report what is durable; before a claim held it need not be of the leader's log."""
        end = log.flushed_end
        if not self._is_matched or end <= self._reported:
            return []
        self._reported = end
        return [Send(self.leader, Flushed(self._log_id, self.epoch, end))]

    def tell_damage(self, log: LogView) -> list[Effect]:
        """Tell the leader that what was flushed here does not count: it sees to it that this
        replica learns anew."""
        self.is_due = False
        damaged = Promised(self._log_id, self.epoch, log.flushed_last, is_faulty=True)
        return [Send(self.leader, damaged)]

    def copy(self) -> list[Effect]:
        """Copy the leader's segments. Until they are there the log is what it was, and votes."""
        self.is_due, self.is_copying = False, True
        return [Install(self.leader)]

    def answered(self, message: Diverged | TooOld, log: LogView) -> list[Effect]:
        """Take what the leader says to a claim that it cannot go on from.

        An answer to another claim comes late: since then the log may have been cut and have grown
        again, and more would be cut than the leader lacks. But it ended the leader's stream.
        """
        if message.claim != self._claim:
            return [] if self._claim is not None else self.fetch(log)
        if isinstance(message, TooOld):
            return self.copy()
        self._claim = None
        end = log.lineage.retreat(message.answer).end
        if end < self._commit.end:
            # Never, unless a disk or the coordinator lost what it had acknowledged.
            return [Problem(f"{self.leader} lacks what is committed from {end} on: nothing is cut")]
        return [Truncate(end)] if end < log.end else []
