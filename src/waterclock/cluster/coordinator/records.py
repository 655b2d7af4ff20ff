"""What nodes keep in the coordinator: keys and records. docs/formats/coordinator.md shows them.

    waterclock/<cluster>/cluster                 who the cluster is, what all its nodes understand
    waterclock/<cluster>/nodes/<id>              a node that lives, under its lease
    waterclock/<cluster>/partitions/<log id>     who leads a partition, under which epoch
    waterclock/<cluster>/drains/<id>             a node that is to have no replicas
    waterclock/<cluster>/moves/<log id>          where people want a replica of a partition
    waterclock/<cluster>/lock                    who decides on placement, under its lease

Records are JSON, for people read them when something is wrong. A reader passes over fields it does
not know; a record of a later version it refuses.
"""

from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from waterclock.cluster.coordinator.errors import BadRecord
from waterclock.cluster.coordinator.requests import KeyRange, all_below
from waterclock.model.errors import BadInput
from waterclock.model.ids import Epoch

VERSION: Final = 1
LOG_ID_BYTES: Final = 16
REPLICAS_MAX: Final = 5
LEARNERS_MAX: Final = 255
"""Of `__meta`, of which every node has a copy: so many nodes there can be, and a few more."""

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster itself; made once, by the first of its nodes."""

    cluster_id: Name
    """Told apart by this: a cluster that was made anew under the same name is another one."""
    level: Count
    """The release level that every member has: what came with later ones is not written, as
    `release_level.may_write` says."""
    meta_log: str = ""
    """The id of the log of `__meta`, in hexadecimal; empty until the cluster has one."""
    v: int = VERSION


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A node that keeps its lease alive."""

    peer: Name
    """`host:port` for other nodes."""
    gossip: str = ""
    """`host:port` of its gossip."""
    disk: str = ""
    """The id of its data folder: a node whose disk was wiped is another replica."""
    http: str = ""
    """Where clients reach it, as a URL."""
    zone: str = ""
    is_leaving: bool = False
    """It stops soon: it is given nothing more to lead or to copy."""
    level: Count
    """The highest release level that it can do."""
    v: int = VERSION


class PartitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads a partition. Every change is a swap, and the epoch never goes back."""

    epoch: Count
    """0: nobody has led it yet."""
    state: Literal["vacant", "candidate", "leading"]
    leader: str = ""
    """Who leads, or is about to: a candidate has the epoch, and not yet a majority's answers."""
    replicas: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=REPLICAS_MAX)]
    """Those that vote, as `<node>:<disk>`, the preferred leader first."""
    learners: Annotated[tuple[Name, ...], Meta(max_length=LEARNERS_MAX)] = ()
    """Those that copy the log, and neither vote nor lead."""
    v: int = VERSION

    def __post_init__(self) -> None:
        if len(set(self.replicas)) < len(self.replicas):
            raise ValueError("a replica is named twice")
        if len({*self.replicas, *self.learners}) < len(self.replicas) + len(self.learners):
            raise ValueError("a learner is named twice, or votes")
        is_vacant = self.state == "vacant"
        if (self.epoch == 0) != is_vacant or (self.leader == "") != is_vacant:
            raise ValueError("a partition is vacant, or has a leader and an epoch")
        if not is_vacant and self.leader not in self.replicas:
            raise ValueError("the leader is no replica")

    def taken_over(self, candidate: str) -> "PartitionRecord":
        """Return the record with which a replica takes over: one epoch later, as a candidate."""
        return msgspec.structs.replace(
            self, epoch=Epoch(self.epoch + 1), state="candidate", leader=candidate
        )

    def led(self) -> "PartitionRecord":
        """Return the record of the candidate that a majority has answered."""
        assert self.state == "candidate", self.state
        return msgspec.structs.replace(self, state="leading")

    def resigned(self) -> "PartitionRecord":
        """Return the record of a leader that cannot lead now: others may take over from it."""
        assert self.state == "leading", self.state
        return msgspec.structs.replace(self, state="candidate")

    def preferring(self, replica: str) -> "PartitionRecord":
        """Return the record in which one of the replicas is preferred to lead."""
        others = (each for each in self.replicas if each != replica)
        return msgspec.structs.replace(self, replicas=(replica, *others))

    def with_learner(self, replica: str) -> "PartitionRecord":
        """Return the record with one more that copies the log."""
        return msgspec.structs.replace(self, learners=(*self.learners, replica))

    def with_voter(self, learner: str) -> "PartitionRecord":
        """Return the record in which a learner votes."""
        learners = tuple(each for each in self.learners if each != learner)
        return msgspec.structs.replace(self, replicas=(*self.replicas, learner), learners=learners)

    def with_demoted(self, voter: str) -> "PartitionRecord":
        """Return the record in which a replica that does not lead votes no more, and copies on."""
        return self.without(voter).with_learner(voter)

    def without(self, replica: str) -> "PartitionRecord":
        """Return the record without a replica or learner, which is not the leader; the replica
        that came last takes the place of one."""
        *others, last = self.replicas
        replicas = [last if each == replica else each for each in others]
        if last != replica and replica not in self.replicas:
            replicas.append(last)
        return msgspec.structs.replace(
            self,
            replicas=tuple(replicas),
            learners=tuple(each for each in self.learners if each != replica),
        )


class DrainRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is to have no replicas: people said so. It outlives the node's lease."""

    since_ms: Count
    target: str = ""
    """The node that replaces it, for it will not come back; empty: it is there, or comes back, and
    its replicas go where there are fewest."""
    v: int = VERSION


class MoveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where people want a replica of a partition, or its leader, until it is there."""

    target: Name
    """The node."""
    source: str = ""
    """The node whose replica it takes the place of; empty: whichever can best be spared."""
    is_leader_only: bool = False
    """The node has a replica, and is to lead."""
    v: int = VERSION


class LockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who decides where partitions are, as long as its lease lives."""

    holder: Name
    v: int = VERSION


class _Versioned(msgspec.Struct):
    """What a record of any version has."""

    v: int


Record = ClusterRecord | NodeRecord | PartitionRecord | DrainRecord | MoveRecord | LockRecord
SomeRecord = TypeVar(
    "SomeRecord",
    ClusterRecord,
    NodeRecord,
    PartitionRecord,
    DrainRecord,
    MoveRecord,
    LockRecord,
)


class Keys:
    """The keys of one cluster; several can share an etcd."""

    def __init__(self, cluster: str) -> None:
        if not cluster or "/" in cluster:
            raise BadInput(f"{cluster!r} is no name of a cluster: it is empty or has a slash in it")
        self._below: Final = f"waterclock/{cluster}/".encode()

    def __repr__(self) -> str:
        return f"<Keys below {self._below.decode()}>"

    @property
    def everything(self) -> KeyRange:
        """All keys of the cluster: what a node reads once, and then watches."""
        return all_below(self._below)

    @property
    def cluster(self) -> bytes:
        """Of the `ClusterRecord`."""
        return self._below + b"cluster"

    @property
    def lock(self) -> bytes:
        """Of the `LockRecord`."""
        return self._below + b"lock"

    @property
    def nodes(self) -> KeyRange:
        """Those of all nodes that live."""
        return all_below(self._below + b"nodes/")

    @property
    def partitions(self) -> KeyRange:
        """Those of all partitions."""
        return all_below(self._below + b"partitions/")

    @property
    def drains(self) -> KeyRange:
        """Those of all nodes that are to have nothing."""
        return all_below(self._below + b"drains/")

    @property
    def moves(self) -> KeyRange:
        """Those of all partitions that are to be elsewhere."""
        return all_below(self._below + b"moves/")

    def node(self, node_id: str) -> bytes:
        """Of a node's `NodeRecord`."""
        if not node_id:
            raise BadInput("a node has an id")
        return self._below + b"nodes/" + node_id.encode()

    def partition(self, log_id: bytes) -> bytes:
        """Of the `PartitionRecord` of a log."""
        assert len(log_id) == LOG_ID_BYTES, log_id
        return self._below + b"partitions/" + log_id.hex().encode()

    def drain(self, node_id: str) -> bytes:
        """Of a node's `DrainRecord`."""
        if not node_id:
            raise BadInput("a node has an id")
        return self._below + b"drains/" + node_id.encode()

    def move(self, log_id: bytes) -> bytes:
        """Of the `MoveRecord` of a log."""
        assert len(log_id) == LOG_ID_BYTES, log_id
        return self._below + b"moves/" + log_id.hex().encode()

    def node_of(self, key: bytes) -> str:
        """Return whose `NodeRecord` or `DrainRecord` is there."""
        below = self.drains if key in self.drains else self.nodes
        try:
            return self._rest(key, below).decode()
        except UnicodeDecodeError as error:
            raise BadRecord(key, "the id of the node is not UTF-8") from error

    def log_of(self, key: bytes) -> bytes:
        """Return of which log a `PartitionRecord` or `MoveRecord` is there."""
        rest = self._rest(key, self.moves if key in self.moves else self.partitions)
        try:
            log_id = bytes.fromhex(rest.decode("ascii"))
        except ValueError as error:
            raise BadRecord(key, "the id of the log is not hexadecimal") from error
        if log_id.hex().encode() != rest or len(log_id) != LOG_ID_BYTES:
            raise BadRecord(key, "the id of the log is not 32 lowercase digits")
        return log_id

    @staticmethod
    def _rest(key: bytes, keys: KeyRange) -> bytes:
        if key not in keys or key == keys.start:
            raise BadRecord(key, f"it is not below {keys.start.decode()}")
        return key.removeprefix(keys.start)


def encode_record(record: Record) -> bytes:
    """Return a record as it is stored."""
    return msgspec.json.encode(record)


def decode_record(kind: type[SomeRecord], value: bytes, *, key: bytes) -> SomeRecord:
    """Return the record that is stored at a key."""
    try:
        version = msgspec.json.decode(value, type=_Versioned).v
        if version != VERSION:
            raise BadRecord(key, f"it is of version {version}, and this release reads {VERSION}")
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRecord(key, str(error)) from error
