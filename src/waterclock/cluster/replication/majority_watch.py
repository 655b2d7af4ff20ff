"""Whether the leader that the record names has a majority of replicas linked.

Safety does not need it: without a majority nothing is committed. But publishes would wait for ever,
and while the node keeps its lease nobody would take over. So after a while the leader takes no
publishes, and writes into the record that others may try. If nobody does, and its links come back,
it leads on under the same epoch.
"""

from typing import Final

from waterclock.cluster.replication.effects import Effect
from waterclock.cluster.replication.election import Election
from waterclock.cluster.replication.leadership import Leadership
from waterclock.cluster.replication.log_view import ReplicaId

LEASE_MS: Final = 3_000
"""So long a leader waits for its links, unless it is said otherwise: as long as others wait for a
leader that is silent."""


class MajorityWatch:
    """Of one replica; it has a timer only while the replica is named and its links are down."""

    def __init__(self, me: ReplicaId, election: Election, lease_ms: int) -> None:
        self._me = me
        self._lease_ms = lease_ms
        self._election = election
        self._until_ms: int | None = None

    def __repr__(self) -> str:
        return f"<MajorityWatch of {self._me} until {self._until_ms}>"

    def look(
        self, leadership: Leadership | None, now_ms: int, *, silent_ms: int = 0
    ) -> list[Effect]:
        """See whether it has a majority, whenever links or the record may be others; `silent_ms`
        that of a link which just broke: so much of the lease is over."""
        known = self._election.known
        record = known.record
        is_named = record is not None and record.leader == self._me
        if record is None or not is_named:
            self._until_ms = None
            return []
        log = self._election.log
        if leadership is None and log is not None and log.is_faulty:
            return self.resign()  # it led before it started anew, and cannot now
        if not self._election.peers.reaches_majority(record.replicas):
            self._until_ms = self._until_ms or now_ms + max(0, self._lease_ms - silent_ms)
            return []
        self._until_ms = None
        if leadership is None:
            return []
        effects = leadership.open()
        if record.state == "candidate" and not known.is_swapping:
            effects += known.swap(record.led())  # it had resigned, and nobody took over
        return effects

    def tick(self, leadership: Leadership | None, now_ms: int) -> list[Effect]:
        """Take no publishes any more when it has been without a majority for too long."""
        if self._until_ms is None or now_ms < self._until_ms:
            return []
        self._until_ms = None
        why, effects = "no majority of replicas is linked", list[Effect]()
        if leadership is not None:
            effects += leadership.pause(why, fails_waiting=True)
        return effects + self.resign()

    def resign(self) -> list[Effect]:
        """Let others take over although this node keeps its lease."""
        known = self._election.known
        record = known.record
        if record is None or record.leader != self._me or record.state != "leading":
            return []
        return [] if known.is_swapping else known.swap(record.resigned())

    def next_deadline(self) -> int | None:
        """Return when `tick` has something to do."""
        return self._until_ms
