"""Reading copies of other nodes: who is asked, and what comes back."""

import msgspec
import pytest

from tests.storage.stores import FIRST, Partition, disk_of, flipped, message, open_store, places
from waterclock.cluster.remote_calls import BadCall, UnforeseenElsewhere
from waterclock.model.errors import NotLeader, Unavailable, Unreachable
from waterclock.node.partition.log_reader import LogReader
from waterclock.node.partition.remote_log import LogQuery
from waterclock.server.cluster.calls.remote_reads import READ_LOG, RemoteLogs, _encoded
from waterclock.storage.partition_store import PartitionStore

QUERY = LogQuery("orders", 0, offset=0, bytes_max=1 << 20, times=(0,))


class Cluster:
    """Places, and the other nodes, which all have the same log."""

    me = "a"

    def __init__(self) -> None:
        self.partition = Partition()
        self.partition.publish(message(0), message(1))
        self.leader: str | None = "b"
        self.replicas: tuple[str, ...] = ("b", "c")
        self.asked: list[str] = []
        self.answer: bytes | Exception | None = None
        self.stores: dict[str, PartitionStore | Exception] = {}
        """Of nodes whose copy is another one."""

    def leader_of(self, topic: str, partition: int) -> str | None:
        return self.leader

    def replicas_of(self, topic: str, partition: int) -> tuple[str, ...]:
        return self.replicas

    async def unary(self, node: str, method: str, request: bytes) -> bytes:
        assert method == READ_LOG
        self.asked.append(node)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        store = self.stores.get(node, self.partition.store)
        if isinstance(store, Exception):
            raise store
        query = msgspec.json.decode(request, type=LogQuery)
        return _encoded(LogReader(store, met_damage=lambda: True), query, 1)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def logs(cluster: Cluster) -> RemoteLogs:
    return RemoteLogs(cluster, cluster)  # type: ignore[arg-type]


async def test_frames_come_as_they_lie_in_the_log_of_the_leader(cluster, logs):
    answer = await logs.read(QUERY)

    store = cluster.partition.store
    assert [bytes(frame.raw) for frame in answer.frames] == [
        bytes(frame.raw) for frame in store.frames(0)
    ]
    assert answer._replace(frames=[]) == (
        0, 2, 1, store.log_id, store.log_time_ms, [], 2, (0,),
    )  # fmt: skip
    assert cluster.asked == ["b"]


async def test_while_nobody_leads_all_that_have_a_copy_are_asked_in_turn(cluster, logs):
    cluster.leader, cluster.replicas = None, ("a", "b", "c")
    for _ in range(4):
        await logs.read(QUERY)
    assert sorted(cluster.asked) == ["b", "b", "c", "c"]

    cluster.replicas = ("a",)
    with pytest.raises(NotLeader):
        await logs.read(QUERY)


def with_damage(cluster: Cluster) -> PartitionStore:
    """Return the cluster's log, of three frames by then, the second of which has rotted."""
    cluster.partition.fill(range(2, 4))
    cluster.partition.close()
    files = cluster.partition.files()
    cluster.partition.open()
    position, _ = places(files[FIRST])[1]
    return open_store(disk_of(files | {FIRST: flipped(files[FIRST], position + 20)}))


async def test_where_a_copy_is_damaged_another_one_is_asked(cluster, logs):
    cluster.stores["b"] = with_damage(cluster)

    before = await logs.read(QUERY)
    assert [frame.header.base_offset for frame in before.frames] == [0]
    assert (before.next_offset, cluster.asked) == (2, ["b"])

    found = await logs.read(msgspec.structs.replace(QUERY, offset=2))
    assert [frame.header.base_offset for frame in found.frames] == [2, 3]
    assert (found.next_offset, cluster.asked) == (4, ["b", "b", "c"])


async def test_while_no_other_copy_answers_nothing_is_passed_over(cluster, logs):
    cluster.stores = {"b": with_damage(cluster), "c": Unreachable("c")}

    found = await logs.read(msgspec.structs.replace(QUERY, offset=2))

    assert (found.frames, found.next_offset, found.end) == ([], 2, 4)


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\1{", b"\0\0\0\2{}", b"\xff" * 9])
async def test_an_answer_that_is_none_is_named(cluster, logs, answer):
    cluster.answer = answer
    with pytest.raises(BadCall):
        await logs.read(QUERY)


async def test_a_damaged_frame_is_not_taken(cluster, logs):
    whole = _encoded(LogReader(cluster.partition.store), QUERY, 0)
    cluster.answer = whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(BadCall):
        await logs.read(QUERY)


async def test_a_bug_of_the_other_node_is_not_one_of_this(cluster, logs):
    cluster.answer = UnforeseenElsewhere("something unforeseen", "e1")
    with pytest.raises(Unavailable):
        await logs.read(QUERY)
