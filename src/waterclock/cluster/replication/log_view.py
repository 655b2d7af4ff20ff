"""What replication reads of a replica's log; it never writes. `storage.ReplicaLog` is one."""

from typing import NewType, Protocol

from waterclock.cluster.replication.lineage import EpochEnd, Lineage
from waterclock.model.ids import Offset

ReplicaId = NewType("ReplicaId", str)
"""`<node>:<disk>`: a node whose disk was wiped is another replica."""


class LogView(Protocol):
    """A log as it is at this moment."""

    @property
    def end(self) -> Offset:
        """One past the last offset written."""
        ...

    @property
    def flushed_end(self) -> Offset:
        """Everything below this outlives a power failure."""
        ...

    @property
    def lineage(self) -> Lineage:
        """The leader epochs of all that is written."""
        ...

    @property
    def flushed_last(self) -> EpochEnd:
        """The epoch of the last frame that is flushed, and `flushed_end`."""
        ...

    @property
    def stream_start(self) -> Offset:
        """From here on frames are as their leader wrote them; what lies below was rewritten."""
        ...

    @property
    def is_faulty(self) -> bool:
        """Whether something is damaged that was flushed: such a log neither votes nor leads."""
        ...
