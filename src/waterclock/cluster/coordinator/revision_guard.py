"""Notices that a store went back: restored from an old snapshot, it has lost what it acknowledged.

A linearizable answer is never older than one that came before the question was asked. So each
question notes the greatest revision seen when it was sent, and its answer must not be below.
Answers may overtake each other; comparing with the greatest at the answer's arrival would be wrong.

What it cannot see: a store that went back and was then written to until it was beyond what this
client saw. Epochs are therefore compared with those that replicas keep on disk, too.
"""

from waterclock.cluster.coordinator.errors import RevisionWentBack
from waterclock.cluster.coordinator.requests import Revision


class RevisionGuard:
    """The greatest revision that one client saw; once it went back, everything is refused."""

    def __init__(self) -> None:
        self._seen = Revision(0)
        self._refused: RevisionWentBack | None = None

    def __repr__(self) -> str:
        state = "refuses all" if self._refused else "trusts"
        return f"<RevisionGuard {state}, saw {self._seen}>"

    def asked(self) -> Revision:
        """Return what the answer to a question sent now must not be below."""
        if self._refused:
            raise RevisionWentBack(seen=self._refused.seen, found=self._refused.found)
        return self._seen

    def answered(self, revision: Revision, *, at_least: Revision) -> None:
        """Take note of an answer; raise, now and for ever, if it is older than it can be."""
        if revision < at_least:
            self._refused = RevisionWentBack(seen=at_least, found=revision)
        self.asked()
        self._seen = max(self._seen, revision)
