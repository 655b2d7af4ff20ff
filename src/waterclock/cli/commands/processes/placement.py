"""What the journal says of processes that are not to run any more: they may have nothing left."""

from waterclock.cluster.coordinator.records import Keys, PartitionRecord, decode_record
from waterclock.cluster.coordinator.requests import Delete, Txn, one_key
from waterclock.cluster.coordinator.store import Store
from waterclock.cluster.replication.cluster_view import node_of
from waterclock.model.errors import BadConfig
from waterclock.server.cluster.processes.neighbours import STEM


def check_none_is_missed(store: Store, cluster: str, count: int) -> None:
    """Raise BadConfig if partitions are in processes beyond so many: they would be away."""
    kept: dict[int, int] = {}
    keys = Keys(cluster)
    for item in store.read(keys.partitions).items:
        record = decode_record(PartitionRecord, item.value, key=item.key)
        for replica in record.replicas:
            number = _number_of(node_of(replica))
            kept[number] = kept.get(number, 0) + 1
    missed = {number: parts for number, parts in kept.items() if number > count}
    if missed:
        last = max(missed)
        names = " ".join(f"{STEM}{number}" for number in sorted(missed))
        raise BadConfig(
            "--processes",
            f"{count} are too few: {names} have {sum(missed.values())} partitions. Start {last}, "
            f"run `waterclock cluster drain {STEM}{last}` and so on, then start {count}",
        )


def _number_of(name: str) -> int:
    number = name.removeprefix(STEM)
    return int(number) if number.isdigit() else 1


def begin_run(store: Store, cluster: str, count: int) -> None:
    """Forget what was of the last run: leases, for no process outlived it, and drains of processes
    that are gone, which may come back when more are wanted."""
    for lease in store.moment.leases:
        store.revoke(lease)
    keys = Keys(cluster)
    drained = [item.key for item in store.read(keys.drains).items]
    gone = [key for key in drained if _number_of(keys.node_of(key)) > count]
    if gone:
        store.write(Txn((), tuple(Delete(one_key(key)) for key in gone)))
