"""What is wrong with a node, in words: for people who look, and for machines that ask.

A problem that is *blocking* keeps the node from what everyone wants of it, and makes it not ready;
any other concerns a part, and all else goes on.
"""

from typing import Final

from waterclock.model.ids import Millis
from waterclock.model.views import View

STARTING: Final = "starting"
STOPPING: Final = "stopping"
DISK_FAILED: Final = "diskFailed"
DISK_FULL: Final = "diskFull"
STORE_AWAY: Final = "storeAway"
COORDINATOR_AWAY: Final = "coordinatorAway"
RIGHTS_APART: Final = "rightsApart"
PROCESS_AWAY: Final = "processAway"
PARTITION_CLOSED: Final = "partitionClosed"
PARTITION_DAMAGED: Final = "partitionDamaged"

BLOCKING: Final = frozenset({STARTING, STOPPING, DISK_FAILED, DISK_FULL, PROCESS_AWAY})

ADVICE: Final = {
    STARTING: "wait",
    STOPPING: "ask another node, or start this one again",
    DISK_FAILED: "look after the disk and the data folder, then start the node again",
    DISK_FULL: "free space, or delete topics: then what is due fires; reading goes on meanwhile",
    STORE_AWAY: "look after the database of streams.store; the node tries again by itself",
    COORDINATOR_AWAY: "look after etcd (cluster.etcd): leaders go on, nobody can take over",
    RIGHTS_APART: "look after the other nodes and the links to them; until then this node lets in "
    "whom its own secure folder does",
    PROCESS_AWAY: "wait: it is started again, and what it leads answers then; the log says why",
    PARTITION_CLOSED: "restore its folder from a copy, or delete the topic; then restart the node",
    PARTITION_DAMAGED: "restore its files from a copy, or accept the loss: waterclock log repair",
}


class HealthProblem(View, frozen=True):
    """One thing that is wrong."""

    name: str
    detail: str
    since_ms: int
    """When it began, or was first seen."""
    is_blocking: bool
    """The node is not ready because of it."""
    advice: str


def problem_named(name: str, detail: str, since_ms: Millis) -> HealthProblem:
    """Return a problem with all that its name says of it."""
    return HealthProblem(name, detail, since_ms, name in BLOCKING, ADVICE[name])
