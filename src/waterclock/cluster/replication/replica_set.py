"""Changes of a partition's set of replicas: one at a time, a new one learns before it votes."""

from waterclock.cluster.coordinator.records import LEARNERS_MAX, REPLICAS_MAX, PartitionRecord
from waterclock.cluster.replication.log_view import ReplicaId


def voters_of(record: PartitionRecord) -> tuple[ReplicaId, ...]:
    """Return those that vote."""
    return tuple(map(ReplicaId, record.replicas))


def learner_added(record: PartitionRecord | None, replica: ReplicaId) -> PartitionRecord | None:
    """Return the record with one more learner; None if that makes no sense."""
    if record is None or record.state != "leading" or len(record.learners) >= LEARNERS_MAX:
        return None
    is_known = replica in record.replicas or replica in record.learners
    return None if is_known else record.with_learner(replica)


def learner_promoted(record: PartitionRecord | None, learner: ReplicaId) -> PartitionRecord | None:
    """Return the record in which a learner votes; None if that makes no sense."""
    if record is None or record.state != "leading" or len(record.replicas) >= REPLICAS_MAX:
        return None
    return record.with_voter(learner) if learner in record.learners else None


def voter_demoted(record: PartitionRecord | None, voter: ReplicaId) -> PartitionRecord | None:
    """Return the record in which a replica, which does not lead, learns; None if that makes no
    sense."""
    if record is None or record.state != "leading" or voter == record.leader:
        return None
    is_possible = voter in record.replicas and len(record.learners) < LEARNERS_MAX
    return record.with_demoted(voter) if is_possible else None


def leader_preferred(record: PartitionRecord | None, voter: ReplicaId) -> PartitionRecord | None:
    """Return the record in which a replica is preferred to lead; None if that makes no sense."""
    if record is None or record.state != "leading" or voter not in record.replicas:
        return None
    return record.preferring(voter) if record.replicas[0] != voter else None


def replica_removed(record: PartitionRecord | None, replica: ReplicaId) -> PartitionRecord | None:
    """Return the record without a replica, which does not lead; None if that makes no sense."""
    if record is None or record.state != "leading" or replica == record.leader:
        return None
    is_known = replica in record.replicas or replica in record.learners
    return record.without(replica) if is_known else None
