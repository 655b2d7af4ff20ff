"""Every error Waterclock raises, in one tree; an exception says what the *caller* can do.

    WaterclockError
    ├── BadInput                 fix the request; nothing was changed
    │   ├── LimitExceeded        a named field is over its named limit
    │   ├── BadBatch             the bytes are not a batch of ours
    │   └── BadConfig            a setting is unknown, of the wrong type or out of range
    ├── NotAuthenticated         the node does not know who asks: send a credential that is good
    ├── Forbidden                the principal lacks a right: ask for it, or use another credential
    ├── NotFound                 there is no topic, group, ... of that name
    │   └── UnknownTopic
    ├── AlreadyExists            choose another name, or use what is there
    ├── Busy                     it is in use; end that first
    ├── NotSupported             the node is not set up for that: ask another, or set it up so
    ├── OffsetOutOfRange         ask again within [start, end)
    ├── Gone                     what follows the resume token is lost: go on behind the gap
    ├── Unavailable              nothing is wrong with the request; try again
    │   ├── Overloaded           there is too much at once: wait a little
    │   │   └── QuotaExceeded    the principal is at its own rate: wait as long as it says
    │   ├── Stopping             the node is going down: try elsewhere, or later
    │   ├── Unreachable          no node answers at the address
    │   ├── NotLeader            another node leads it now, or none does yet: ask there, or again
    │   ├── Fenced               the leader lost its place meanwhile: ask again with the same ids
    │   ├── NotEnoughReplicas    stored by a majority, not by all: ask again with the same ids
    │   └── StoreUnavailable     the database of the streams does not answer: try again later
    ├── TimedOut                 no answer in time: it may have happened, or may still happen
    │   └── MatchTimeout           the other side of a stream did not: nothing was handed over
    ├── CannotDecrypt            the value is not for our keys: get the key, or reject the message
    ├── NodeFailed               the node answered what nobody planned: a bug, or not a node
    ├── StorageError             the disk or what is on it
    │   ├── StorageFull          free space, then publish again; reads go on
    │   ├── StorageFailed        a write or fsync failed: stop this node, restart it clean
    │   ├── FolderInUse          another process has this folder
    │   └── Damaged              bytes on disk are not what was written
    │       ├── FrameDamaged     a frame fails its checksum or contradicts itself
    │       ├── ForeignFile      a file in the folder is not ours, or of a version we do not read
    │       └── PartitionFaulty  acknowledged messages are missing or damaged: refuse to append
    └── Closed                   the object was closed; open it again

Foreign errors are translated once, at the border, by `translate`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class WaterclockError(Exception):
    """The root: catch this to catch everything Waterclock raises on purpose."""


class BadInput(WaterclockError):
    """The request is wrong; nothing was changed. Fix it and send it again."""


class LimitExceeded(BadInput):
    """A field is over its limit; both are named."""

    def __init__(
        self, field: str, limit: int, *, got: int | None = None, meaning: str = ""
    ) -> None:
        """`meaning` says what no number does: the limit as people write it, who sets it."""
        seen = "" if got is None else f" (got {got})"
        super().__init__(f"{field} exceeds its limit of {limit}{seen}{meaning and ': '}{meaning}")
        self.field = field
        self.limit = limit
        self.got = got

    def within(self, path: str) -> "LimitExceeded":
        """Return it as one of a part of the request."""
        found = LimitExceeded(f"{path}.{self.field}", self.limit, got=self.got)
        found.args = (f"{path}.{self}",)
        return found


class CapacityReached(LimitExceeded):
    """There is no room for one more: all together are at their limit, and nothing is wrong with the
    request itself."""


class ForgedToken(BadInput):
    """A resume token is well-formed, and not one we gave out for this stream."""


class BadBatch(BadInput):
    """The bytes are not a batch of this format version; `field` says where they go wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"batch {field}: {problem}")
        self.field = field
        self.problem = problem


class BadConfig(BadInput):
    """A setting is unknown, of the wrong type or out of range; `field` is its dotted path."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"configuration {field}: {problem}")
        self.field = field
        self.problem = problem


class NotAuthenticated(WaterclockError):
    """The node does not know who asks; of a credential it says why it is no good, no more."""


class Forbidden(WaterclockError):
    """The principal has not the right that this needs; both are named."""

    about: Any = None
    """The demand that was not met, for the node's own record: clients are not shown it."""

    def __init__(self, right: str, resource: str, *, principal: str) -> None:
        """`resource` is what it is about, as in "topic 'orders'"."""
        super().__init__(f"{principal} has no right to {right} {resource}")
        self.right = right
        self.resource = resource
        self.principal = principal


class NotFound(WaterclockError):
    """There is nothing of that name."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"there is no {what} {name!r}")
        self.what = what
        self.name = name


class UnknownTopic(NotFound):
    """There is no such topic, and the request does not create one."""

    def __init__(self, name: str) -> None:
        super().__init__("topic", name)


class AlreadyExists(WaterclockError):
    """The name is taken."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} {name!r} exists already")
        self.what = what
        self.name = name


class Busy(WaterclockError):
    """It is in use; end that first."""


class NotSupported(WaterclockError):
    """The node does not do that as it is set up; the message says what would."""


class OffsetOutOfRange(WaterclockError):
    """The offset is not in the log; ask again within [start, end)."""

    def __init__(self, offset: int, *, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside the log [{start}, {end})")
        self.offset = offset
        self.start = start
        self.end = end


class Gone(WaterclockError):
    """What follows a resume token was overwritten, has expired, or was lost with the node.

    `missed` says how many messages, 0 if nobody knows; `resume_token` leads on behind the gap.
    """

    def __init__(self, detail: str, *, missed: int, resume_token: str) -> None:
        super().__init__(detail)
        self.missed = missed
        self.resume_token = resume_token


class Unavailable(WaterclockError):
    """Nothing is wrong with the request; try again."""


class Overloaded(Unavailable):
    """Too much is being worked on; `field` names what there is too much of."""

    def __init__(self, field: str, limit: int) -> None:
        super().__init__(f"too many {field} at once (at most {limit}): try again soon")
        self.field = field
        self.limit = limit


class QuotaExceeded(Overloaded):
    """The principal is at its quota; after `retry_after_ms` the same may go through."""

    def __init__(self, field: str, limit: int, *, principal: str, retry_after_ms: int) -> None:
        super().__init__(field, limit)
        self.args = (
            f"{principal} is at its quota of {limit} {field}: try again in {retry_after_ms} ms",
        )
        self.principal = principal
        self.retry_after_ms = retry_after_ms


class Stopping(Unavailable):
    """The node is going down."""


class Unreachable(Unavailable):
    """No node answers at the address."""

    reason: str = ""
    """Why, in a few words, where that is known."""


class NotLeader(Unavailable):
    """The node that was asked does not lead what this is about; nothing was changed."""

    def __init__(self, what: str, *, leader: str = "") -> None:
        """`what` is what it does not lead; `leader` the node that does, empty if nobody knows."""
        whose = f"{leader} leads it" if leader else "nobody leads it yet"
        super().__init__(f"this node does not lead {what}, {whose}: ask again")
        self.leader = leader


class Fenced(Unavailable):
    """The node lost its place, or its link, while it worked: it may have happened, or not.

    Asking again with the same ids is safe.
    """


class NotEnoughReplicas(Unavailable):
    """A majority of the replicas has stored it, but not all, and `acks=all` was asked for.

    It stays stored. Publishing again with the same ids stores nothing more, and waits on.
    """


class StoreUnavailable(Unavailable):
    """The database that keeps the streams does not answer. It may have happened; try again later.

    Storing again under the same `message_id` is safe.
    """


class TimedOut(WaterclockError):
    """No answer came in time, so it may have happened, or may still happen.

    Publishing again with the same `message_id` is safe.
    """


class MatchTimeout(TimedOut):
    """Nobody took the message from its stream, or made room for it, in time. It was not sent.

    Who was to receive is told by `resume_token` where it waited, if the node says so.
    """

    resume_token: str = ""


class CannotDecrypt(WaterclockError):
    """A value was encrypted with another key, or not at all; was changed; or belongs elsewhere."""


class NodeFailed(WaterclockError):
    """The answer is none a node plans to give: a bug in the node, or not a node at all."""


class StorageError(WaterclockError):
    """The disk, or what is on it."""


class StorageFull(StorageError):
    """No space left. Free some, then publish again; what was acknowledged stays readable."""


class StorageFailed(StorageError):
    """A write or fsync failed. Nothing after it can be trusted: stop the node, restart it clean."""


class FolderInUse(StorageError):
    """Another process has locked this folder."""


class Damaged(StorageError):
    """Bytes on disk are not what was written. Nothing is deleted; see the message."""


class FrameDamaged(Damaged):
    """A frame fails its checksum or contradicts itself."""


class ForeignFile(Damaged):
    """A file in the folder is not ours, or of a version this release does not read."""


class PartitionFaulty(Damaged):
    """Acknowledged messages are missing or damaged; reads elsewhere go on, appends are refused."""


class Closed(WaterclockError):
    """The object was closed."""


@contextmanager
def translate(table: Mapping[type[Exception], type[WaterclockError]]) -> Iterator[None]:
    """Turn foreign exceptions into ours, keeping the original as the cause."""
    try:
        yield
    except tuple(table) as error:
        for foreign, ours in table.items():
            if isinstance(error, foreign):
                raise ours(str(error)) from error
        raise
