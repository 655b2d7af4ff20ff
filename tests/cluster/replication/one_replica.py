"""One replica, driven by hand into the role that a test is about."""

from collections.abc import Sequence

from tests.cluster.replication.model_log import Entry, ModelLog
from tests.cluster.replication.model_world import LOG_ID
from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.effects import Effect, Send, Succeeded
from waterclock.cluster.replication.lineage import EpochEnd
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Fetch, Flushed, Message, Promised
from waterclock.cluster.replication.replica import Replica
from waterclock.model.ids import Epoch, Offset

A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")
NOW_MS = 1_000


def log_of(text: str) -> ModelLog:
    """Return a log as in `1* 1x 2*`: the epoch and the value, or a star where an epoch begins."""
    return ModelLog([Entry(int(each[0]), each[1:].strip("*")) for each in text.split()])


def end_of(epoch: int, end: int) -> EpochEnd:
    return EpochEnd(Epoch(epoch), Offset(end))


def sent(effects: Sequence[Effect]) -> list[tuple[str, Message]]:
    return [(each.to, each.message) for each in effects if isinstance(each, Send)]


def led_by(leader: str, epoch: int, replicas: str = "abc", learners: str = "") -> PartitionRecord:
    return PartitionRecord(
        epoch=epoch,
        state="leading",
        leader=leader,
        replicas=tuple(replicas),
        learners=tuple(learners),
    )


def follower(log: ModelLog, epoch: int = 1, me: ReplicaId = B) -> Replica:
    """Return a replica that has just asked `a`, the leader, for what follows."""
    replica = Replica(me, LOG_ID, log, promised=Epoch(epoch), candidate=A)
    replica.link_up(A, NOW_MS)
    replica.record_changed(led_by(A, epoch), Revision(5), NOW_MS)
    return replica


def leader(
    log: ModelLog, epoch: int, replicas: str = "abc", learners: str = "", *, begins: bool = True
) -> Replica:
    """Return `a` as the leader, with its epoch's frame written and not flushed."""
    replica = Replica(A, LOG_ID, log, promised=Epoch(epoch - 1))
    for each in (replicas + learners)[1:]:
        replica.link_up(ReplicaId(each), NOW_MS)
    record = led_by(A, epoch, replicas, learners).resigned()
    replica.record_changed(record, Revision(5), NOW_MS)
    replica.promise_saved(Epoch(epoch), NOW_MS)
    for each in replicas[1:]:
        promised = Promised(LOG_ID, Epoch(epoch), end_of(0, 0), is_faulty=False)
        replica.received(ReplicaId(each), promised, NOW_MS)
    replica.swapped(Succeeded(Revision(6)), NOW_MS)
    assert replica.role == "leader"
    if begins:
        log.append([Entry(epoch)])
        replica.appended(NOW_MS)
    return replica


def fetched(replica: Replica, sender: ReplicaId, log: ModelLog) -> list[Effect]:
    """Have another replica ask the leader for what follows on its log."""
    fetch = Fetch(LOG_ID, replica.epoch, log.lineage.last, log.flushed_end)
    return replica.received(sender, fetch, NOW_MS)


def reported(replica: Replica, sender: ReplicaId, end: int, epoch: int = 0) -> list[Effect]:
    """Have another replica report what it has flushed."""
    flushed = Flushed(LOG_ID, Epoch(epoch or replica.epoch), Offset(end))
    return replica.received(sender, flushed, NOW_MS)
