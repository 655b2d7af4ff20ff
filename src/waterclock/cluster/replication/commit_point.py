"""How much of the log is committed, as far as a replica knows. It never steps back, but where a
learner's log begins anew."""

from waterclock.cluster.replication.effects import CommitTo, Effect
from waterclock.model.ids import Offset


class CommitPoint:
    """Moved by the leadership of this replica, or by its leader's messages."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = Offset(0)

    def __repr__(self) -> str:
        return f"<CommitPoint {self.end}>"

    def advance(self, end: Offset) -> list[Effect]:
        """Commit everything below an end; late news change nothing."""
        if end <= self.end:
            return []
        self.end = end
        return [CommitTo(end)]
