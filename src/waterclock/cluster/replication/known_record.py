"""The partition's record as far as a replica knows it, and the one swap that may change it.

A swap whose outcome is unknown may have happened, or may happen yet: until a later revision is
known, both records have to be reckoned with. To end the doubt the record is read, and if it is
still the old one the same swap is asked for again: whichever of the two comes first, the other
finds another revision.
"""

from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.effects import (
    Effect,
    Lost,
    ReadRecord,
    Succeeded,
    Swap,
    Swapped,
    Unknown,
)
from waterclock.cluster.replication.log_view import ReplicaId


class KnownRecord:
    """What is known of the record; events of the watch may come late, or twice."""

    def __init__(self) -> None:
        self.record: PartitionRecord | None = None
        self.revision = Revision(0)
        self.is_reading = False
        self._asked: Swap | None = None
        self._in_doubt: Swap | None = None

    def __repr__(self) -> str:
        return f"<KnownRecord {self.record} at {self.revision}>"

    @property
    def is_swapping(self) -> bool:
        """Whether a swap is under way or in doubt: no other may be asked for."""
        return self._asked is not None or self._pending() is not None

    def changed(self, record: PartitionRecord | None, revision: Revision) -> bool:
        """Take the record as it was at a revision; say if that is news."""
        if revision <= self.revision:
            return False
        self.record, self.revision = record, revision
        self._in_doubt = None
        return True

    def swap(self, record: PartitionRecord) -> list[Effect]:
        """Ask for another record in the place of this one."""
        assert not self.is_swapping
        self._asked = Swap(record, self.revision)
        return [self._asked]

    def swapped(self, outcome: Swapped) -> tuple[bool, list[Effect]]:
        """Take the outcome; say if the record is another now."""
        asked, self._asked = self._asked, None
        assert asked is not None, "no swap was asked for"
        match outcome:
            case Succeeded(revision):
                return self.changed(asked.record, revision), []
            case Lost(record, revision):
                return self.changed(record, revision), []
            case Unknown():
                self._in_doubt = asked
                return False, self.read() if self._pending() else []

    def read(self) -> list[Effect]:
        """Ask for the record as it is now."""
        if self.is_reading:
            return []
        self.is_reading = True
        return [ReadRecord()]

    def was_read(
        self, record: PartitionRecord | None, revision: Revision
    ) -> tuple[bool, list[Effect]]:
        """Take the answer; say if the record is another now."""
        self.is_reading = False
        if self.changed(record, revision):
            return True, []
        again = self._pending() if self._asked is None else None
        if again is None:
            return False, []
        self._in_doubt, self._asked = None, again
        return False, [again]

    def voter_sets(self) -> tuple[tuple[ReplicaId, ...], ...]:
        """Return those that vote; twice if a swap may have changed it: then both have to agree."""
        pending = self._pending()
        records = [self.record, pending.record if pending else None]
        sets = [tuple(map(ReplicaId, each.replicas)) for each in records if each is not None]
        return tuple(dict.fromkeys(sets))

    def _pending(self) -> Swap | None:
        pending = self._asked or self._in_doubt
        # Once another revision is known it has happened, and is in the record, or never will.
        return pending if pending is not None and pending.revision == self.revision else None
