"""Which leader wrote which stretch of a log, and where two logs part.

A leader epoch has one leader, which writes at consecutive offsets, and a log takes only what
follows on its end. So two logs that have a frame of the same epoch at the same offset are the same
up to it (Raft's log matching, section 5.3). Where they part can then be told from epochs and ends
alone: by this, and by nothing else, a replica may cut its log. Its own commit point says nothing:
it lags behind the leader's, and what lies above it may be committed (KIP-101).

One answer is not enough after several leaders came and went quickly (KIP-279). So the replica
claims what it has, `last`; the leader answers None, or with what it has at most of that,
`diverging`; the replica makes its next best claim, `retreat`, and asks again.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from waterclock.model.ids import Epoch, Offset


class EpochStart(NamedTuple):
    """The first offset of a leader epoch: that of its `epoch` frame."""

    epoch: Epoch
    offset: Offset


class EpochEnd(NamedTuple):
    """How far a log goes in an epoch; the claim to have all before it too."""

    epoch: Epoch
    end: Offset


_BEFORE_ALL = EpochStart(Epoch(0), Offset(0))
"""What was written before there was a first leader is of epoch 0."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The epochs of a log that ends at `end`, oldest first; both their columns rise."""

    starts: tuple[EpochStart, ...]
    end: Offset

    @classmethod
    def of(cls, starts: tuple[EpochStart, ...], end: int) -> "Lineage":
        """Return that of a log that ends there, perhaps before some of these epochs began."""
        return cls(tuple(start for start in starts if start.offset < end), Offset(end))

    @property
    def last(self) -> EpochEnd:
        """The last epoch and the end: of two logs, the one in which this is greater has more."""
        return EpochEnd((self.starts[-1] if self.starts else _BEFORE_ALL).epoch, self.end)

    def begun(self, epoch: Epoch, offset: int) -> tuple[EpochStart, ...]:
        """Return the epochs with one more, which begins where the log will then have ended."""
        kept = Lineage.of(self.starts, offset)
        assert epoch > kept.last.epoch, f"epoch {epoch} is not after {kept.last.epoch}"
        return (*kept.starts, EpochStart(epoch, Offset(offset)))

    def up_to(self, epoch: Epoch) -> EpochEnd:
        """Return the latest epoch of this log that is no later than `epoch`, and its end."""
        starts = (_BEFORE_ALL, *self.starts)
        number = bisect_right(starts, epoch, key=lambda start: start.epoch)
        end = starts[number].offset if number < len(starts) else self.end
        return EpochEnd(starts[number - 1].epoch, end)

    def diverging(self, claim: EpochEnd) -> EpochEnd | None:
        """Return None if this log has all that is claimed, else what it has at most of it."""
        found = self.up_to(claim.epoch)
        has_all = found.epoch == claim.epoch and claim.end <= found.end
        return None if has_all else found

    def retreat(self, answer: EpochEnd) -> EpochEnd:
        """Return the most that this log can still claim, given what the leader answered.

        Once the leader has all that is claimed, cut the log to the claim's `end`.
        """
        found = self.up_to(answer.epoch)
        # Also of an earlier epoch than the answer's: the leader's log is of later ones from there.
        return found._replace(end=min(found.end, answer.end))
