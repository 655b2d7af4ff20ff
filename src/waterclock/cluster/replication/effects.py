"""What the shell has to do for a replica, in this order, before it tells the replica anything else.

`SavePromise`, `Swap`, `ReadRecord`, `BeginEpoch`, `Truncate`, `Install` and `Replace` may take
their time: what became of them is told later, by the event each names. The others are done at once.
"""

from typing import NamedTuple, TypeAlias

from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Bytes, Message
from waterclock.model.ids import Epoch, Offset


class Send(NamedTuple):
    """Send a message to a linked peer; if the link is gone it is lost, which is no error."""

    to: ReplicaId
    message: Message


class Stream(NamedTuple):
    """Send `Frames` from an offset on, about so many bytes, and tell it to `streamed`.

    When the channel has no room you may keep it until there is, and forget it when the link breaks.
    If the offset lies below the log's `stream_start` by then, send nothing and call `overtaken`.
    """

    to: ReplicaId
    offset: Offset
    bytes_max: int


class SavePromise(NamedTuple):
    """Make it durable that nothing below the epoch is accepted, and that under the epoch nobody is
    but the candidate; then call `promise_saved`."""

    epoch: Epoch
    candidate: ReplicaId


class Swap(NamedTuple):
    """Replace the partition's record if it is at the revision; tell the outcome to `swapped`."""

    record: PartitionRecord
    revision: Revision


class ReadRecord(NamedTuple):
    """Read the partition's record anew, linearizably; try until it is read. Then `record_read`."""


class Append(NamedTuple):
    """Write the leader's frames at the end; then call `appended`, or `append_failed`."""

    data: Bytes
    leader_epoch: Epoch


class Truncate(NamedTuple):
    """Cut the log to an end, open it again and give it to `reopened`."""

    end: Offset


class Install(NamedTuple):
    """Copy what that replica has below its `stream_start`, beside the log, which stays as it is.

    Then call `copied`, or `copy_failed`; nothing if the link breaks, or another `Install` follows.
    """

    source: ReplicaId


class Replace(NamedTuple):
    """Put the copy in the place of the log, whole or not at all; give it to `reopened`."""


class BeginEpoch(NamedTuple):
    """Write the epoch's frame; then call `appended`, or `append_failed`."""

    epoch: Epoch


class CommitTo(NamedTuple):
    """Show readers everything below an end, and answer those who wait for it."""

    end: Offset


class Opened(NamedTuple):
    """Take publishes from now on, under the epoch: it leads."""

    epoch: Epoch


class Paused(NamedTuple):
    """Take no publishes until it is `Opened` again; the replica still leads.

    If `fails_waiting`, tell those who wait that the outcome is unknown.
    """

    why: str
    fails_waiting: bool


class Led(NamedTuple):
    """The epoch's frame is committed: readers, timers and groups may go."""

    epoch: Epoch


class SteppedDown(NamedTuple):
    """It leads no more. Tell all who wait that the outcome is unknown: it did not fail.

    After a truncation other messages come to the offsets that they wait for.
    """

    why: str


class Problem(NamedTuple):
    """Something is wrong that people have to know of."""

    text: str


Effect: TypeAlias = (
    Send
    | Stream
    | SavePromise
    | Swap
    | ReadRecord
    | Append
    | Truncate
    | Install
    | Replace
    | BeginEpoch
    | CommitTo
    | Opened
    | Paused
    | Led
    | SteppedDown
    | Problem
)


class Succeeded(NamedTuple):
    """The record is the swapped one, since this revision."""

    revision: Revision


class Lost(NamedTuple):
    """The record was at another revision, and is this; None: there is none."""

    record: PartitionRecord | None
    revision: Revision


class Unknown(NamedTuple):
    """Nobody answered: the swap may have happened, or may happen yet."""


Swapped: TypeAlias = Succeeded | Lost | Unknown
