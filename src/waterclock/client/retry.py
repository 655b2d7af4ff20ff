"""When to try again, whether, and where: backoff that doubles, with jitter, within a deadline.

Jitter keeps clients that failed together from returning together. Half of each wait is fixed, so
that none comes back at once; the other half is chance ("equal jitter").

What a node refused to begin, or never got, can be asked again by anybody. Of what may have happened
only such requests are repeated as then change nothing more: looks, and changes that name what is to
be. Their answer may be that of the repeat: a thing that the first attempt has deleted is not there.
"""

from random import Random

from google.protobuf.message import Message

from waterclock.client.errors import NotConnected, UnusableAddress
from waterclock.model.errors import (
    Closed,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    QuotaExceeded,
    Stopping,
    StorageFailed,
    StorageFull,
    StoreUnavailable,
    TimedOut,
    Unavailable,
    Unreachable,
    WaterclockError,
)
from waterclock.v1 import admin_pb2, broker_pb2, scheduler_pb2, write_registry_pb2

_REPEATABLE: tuple[type[Message], ...] = (
    admin_pb2.DeleteGroupRequest,
    admin_pb2.DeleteReplayRequest,
    admin_pb2.DeleteSnapshotRequest,
    admin_pb2.DeleteTopicRequest,
    admin_pb2.CreateTopicRequest,
    admin_pb2.FindOffsetsRequest,
    admin_pb2.GetGroupRequest,
    admin_pb2.GetHistoryRequest,
    admin_pb2.GetNodeRequest,
    admin_pb2.GetTopicRequest,
    admin_pb2.ListDeadLettersRequest,
    admin_pb2.ListGroupsRequest,
    admin_pb2.ListJobRunsRequest,
    admin_pb2.ListReplaysRequest,
    admin_pb2.ListSnapshotsRequest,
    admin_pb2.ListTopicsRequest,
    admin_pb2.PutJobRunRequest,
    admin_pb2.SeekGroupRequest,
    admin_pb2.UpdateTopicRequest,
    broker_pb2.FetchRequest,
    broker_pb2.FindMessagesRequest,
    scheduler_pb2.CancelRequest,
    scheduler_pb2.CountScheduledRequest,
    scheduler_pb2.DeleteRecurrenceRequest,
    scheduler_pb2.ListRecurrencesRequest,
    scheduler_pb2.ListScheduledRequest,
    scheduler_pb2.PauseRecurrenceRequest,
    scheduler_pb2.PutRecurrenceRequest,
    scheduler_pb2.RescheduleRequest,
    scheduler_pb2.ResumeRecurrenceRequest,
    write_registry_pb2.AbandonWriteRequest,
    write_registry_pb2.BeginWriteRequest,
    write_registry_pb2.CommitWriteRequest,
    write_registry_pb2.FinishWriteRequest,
    write_registry_pb2.ListWritersRequest,
)
"""Not among them: what answers with a count of what it did, such as a redrive."""
_PATIENCE = 2
"""Of a node that answers, and cannot do it: so often is it asked before another is."""

_DOUBLINGS_MAX = 30
"""Beyond it every wait is the longest one; the number of a retry has no bound."""


class Backoff:
    """The waits between attempts at one thing."""

    def __init__(self, *, delay_ms: int, delay_ms_max: int, rng: Random) -> None:
        self._delay_ms = delay_ms
        self._delay_ms_max = delay_ms_max
        self._rng = rng
        self.failures = 0

    def __repr__(self) -> str:
        return f"<Backoff after {self.failures} failures>"

    def next_ms(self, error: WaterclockError | None = None) -> float:
        """Count a failure and return how long to wait before the next attempt: at least as long as
        a node says that will not have us go faster."""
        doubled = self._delay_ms << min(self.failures, _DOUBLINGS_MAX)
        longest = min(doubled, self._delay_ms_max)
        self.failures += 1
        asked_ms = error.retry_after_ms if isinstance(error, QuotaExceeded) else None
        return (asked_ms or 0) + longest * (1 + self._rng.random()) / 2

    def reset(self) -> None:
        """Forget the failures: an attempt succeeded."""
        self.failures = 0


def is_transient(error: WaterclockError) -> bool:
    """Return whether the same request may succeed later: once the node is back, or has space."""
    return isinstance(error, Unavailable | TimedOut | StorageFull | StorageFailed | Closed)


def was_refused(error: WaterclockError) -> bool:
    """Return whether nothing was done, so that a retry is no repeat."""
    return isinstance(error, Overloaded | Stopping | NotLeader)


def was_never_sent(error: WaterclockError) -> bool:
    """Return whether no node has seen the request."""
    return isinstance(error, NotConnected | UnusableAddress)


def may_repeat(request: object, error: WaterclockError) -> bool:
    """Return whether a request that failed so may be made again, though it may have happened."""
    return isinstance(error, Unavailable | StorageFailed) and isinstance(request, _REPEATABLE)


def is_for_another(error: WaterclockError, failures: int) -> bool:
    """Return whether another node should be asked, after so many failures in a row: where this one
    is gone or goes, at once; where it cannot do it, as one that does not reach the leader, later;
    where all would say the same, never."""
    if isinstance(error, Overloaded | StoreUnavailable | NotEnoughReplicas):
        return False
    if isinstance(error, Unreachable | Stopping | StorageFailed | TimedOut | UnusableAddress):
        return True
    return isinstance(error, Unavailable) and failures % _PATIENCE == 0
