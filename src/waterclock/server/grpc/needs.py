"""What every gRPC method needs: the right, which fields of its request say what it is about, and
which node of several answers it.

A field may stand in a part of the request (`open.topic`). A stream names it in the requests that
have that part, and each of those is checked. The kinds of rights are told apart in
`server/access.py`; HTTP declares the same beside its operations.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from waterclock.security.rights import OPEN, Needs, Rights
from waterclock.server.cluster.calls.place import (
    HERE,
    LEADERS,
    LEADERS_ONCE,
    META,
    META_ONCE,
    OF_GROUP,
    OF_GROUP_ONCE,
    Place,
)
from waterclock.server.counts import Made

Show = Callable[[Rights, Any], None]


class Guarded(NamedTuple):
    """A method as the table has it."""

    needs: Needs
    place: Place
    """Which node answers it."""
    named: tuple[str, str] | None = None
    """What has a topic of its own, a recurrence or a replay, and the field with its name: that
    topic counts too."""
    is_publish: bool = False
    """Its requests count against the bytes/s of who asks."""
    makes: tuple[Made, ...] = ()
    """What it makes if it is not there, which counts against the quotas of who asks."""
    show: Show | None = None
    """Takes out of an answer what one may not see."""
    is_of_all: bool = False
    """A request that names no topic is about all that one may read: everyone may ask, and the
    method leaves out the others."""
    is_change: bool = False
    """It changes what there is, beyond messages: the audit has an entry of each call, and so of all
    that need `admin`."""

    @property
    def is_audited(self) -> bool:
        """Whether the audit has an entry of each call, and not of denials only."""
        return self.is_change or self.needs.kind == "admin"


def _only(field: str, sees: Callable[[Rights, Any], bool]) -> Show:
    """Return what leaves those of a list that one may see."""

    def show(rights: Rights, response: Any) -> None:  # noqa: ANN401 - any message
        listed = getattr(response, field)
        seen = [each for each in listed if sees(rights, each)]
        if len(seen) < len(listed):
            del listed[:]
            listed.extend(seen)

    return show


def _without_folder(rights: Rights, response: Any) -> None:  # noqa: ANN401 - a message
    if not rights.allows("read"):
        response.data_folder = ""


_PUBLISH = Needs("publish", topic="topic")
_CONSUME = Needs("consume", topic="topic", group="group")
_SCHEDULE = Needs("schedule", topic="topic")
_READ = Needs("read", topic="topic")
_ADMIN = Needs("admin", topic="topic")
_REPLICA = Place(kind="replica", topic="topic", partition="partition")
_ANY = Needs("read", is_list=True)
"""Whoever is known may ask."""

METHODS: Mapping[str, Guarded] = {
    "Broker/Publish": Guarded(_PUBLISH, HERE, is_publish=True, makes=("topic",)),
    "Broker/PublishBatch": Guarded(_PUBLISH, HERE, is_publish=True, makes=("topic",)),
    "Broker/PublishStream": Guarded(
        Needs("publish", topic="batch.topic"), HERE, is_publish=True, makes=("topic",)
    ),
    "Broker/Subscribe": Guarded(
        Needs("consume", topic="open.topic", group="open.group"),
        Place(kind="group", topic="open.topic", group="open.group"),
        makes=("topic", "group"),
    ),
    "Broker/Fetch": Guarded(_READ, _REPLICA),
    "Broker/FindMessages": Guarded(_READ, _REPLICA),
    "Broker/Replay": Guarded(
        Needs("read", topic="begin.topic"),
        Place(
            kind="replica",
            topic="begin.topic",
            partition="begin.partitions",
            meta_if="begin.name",
        ),
        named=("replay", "begin.name"),
    ),
    "Scheduler/Cancel": Guarded(_SCHEDULE, LEADERS),
    "Scheduler/Reschedule": Guarded(_SCHEDULE, LEADERS),
    "Scheduler/CancelWhere": Guarded(_SCHEDULE, LEADERS_ONCE),
    "Scheduler/ListScheduled": Guarded(_READ, LEADERS, is_of_all=True),
    "Scheduler/CountScheduled": Guarded(_READ, LEADERS, is_of_all=True),
    "Scheduler/PutRecurrence": Guarded(
        Needs("schedule", topic="recurrence.topic"),
        META,
        named=("recurrence", "recurrence.name"),
        makes=("topic",),
        is_change=True,
    ),
    "Scheduler/DeleteRecurrence": Guarded(
        Needs("schedule"), META_ONCE, named=("recurrence", "name"), is_change=True
    ),
    "Scheduler/PauseRecurrence": Guarded(
        Needs("schedule"), META, named=("recurrence", "name"), is_change=True
    ),
    "Scheduler/ResumeRecurrence": Guarded(
        Needs("schedule"), META, named=("recurrence", "name"), is_change=True
    ),
    "Scheduler/ListRecurrences": Guarded(
        Needs("read", topic="topic", is_list=True),
        META,
        show=_only("recurrences", lambda rights, each: rights.allows("read", topic=each.topic)),
    ),
    "Scheduler/ListTimes": Guarded(_ANY, HERE),
    "Admin/CreateTopic": Guarded(
        _PUBLISH,
        Place(kind="meta", is_repeatable=False, repeatable_if="if_absent"),
        makes=("topic",),
        is_change=True,
    ),
    "Admin/UpdateTopic": Guarded(_ADMIN, META),
    "Admin/DeleteTopic": Guarded(_ADMIN, META_ONCE),
    "Admin/GetTopic": Guarded(_READ, LEADERS),
    "Admin/ListTopics": Guarded(
        _ANY,
        Place(kind="leaders"),
        show=_only("topics", lambda rights, each: rights.sees(topic=each.topic)),
    ),
    "Admin/FindOffsets": Guarded(_READ, LEADERS),
    "Admin/ListGroups": Guarded(
        Needs("read", topic="topic", is_list=True),
        Place(kind="homes", topic="topic"),
        show=_only("groups", lambda rights, each: rights.sees(topic=each.topic, group=each.group)),
    ),
    "Admin/GetGroup": Guarded(Needs("read", topic="topic", group="group"), OF_GROUP),
    "Admin/DeleteGroup": Guarded(_CONSUME, OF_GROUP_ONCE, is_change=True),
    "Admin/SeekGroup": Guarded(_CONSUME, OF_GROUP, makes=("group",), is_change=True),
    "Admin/ListDeadLetters": Guarded(_READ, META),
    "Admin/Redrive": Guarded(_PUBLISH, META_ONCE, is_change=True),
    "Admin/PurgeDeadLetters": Guarded(_ADMIN, META_ONCE),
    "Admin/ListReplays": Guarded(
        _ANY,
        META,
        show=_only("replays", lambda rights, each: rights.allows("read", topic=each.topic)),
    ),
    "Admin/DeleteReplay": Guarded(
        Needs("read"), META_ONCE, named=("replay", "name"), is_change=True
    ),
    "Admin/PutJobRun": Guarded(Needs("read", topic="run.topic"), META, named=("run", "run.name")),
    "Admin/ListJobRuns": Guarded(
        _ANY,
        META,
        show=_only("runs", lambda rights, each: rights.allows("read", topic=each.topic or None)),
    ),
    "Admin/RegisterSnapshot": Guarded(_ADMIN, META_ONCE),
    "Admin/ListSnapshots": Guarded(_READ, META),
    "Admin/DeleteSnapshot": Guarded(_ADMIN, META_ONCE),
    "Admin/GetNode": Guarded(_ANY, HERE, show=_without_folder),
    "Admin/GetHistory": Guarded(_READ, HERE),
    "Admin/GetPlacement": Guarded(Needs("read"), HERE),
    "Admin/DrainNode": Guarded(Needs("admin"), HERE),
    "Admin/ReplaceNode": Guarded(Needs("admin"), HERE),
    "Admin/MovePartition": Guarded(Needs("admin"), HERE),
    "WriteRegistry/BeginWrite": Guarded(_PUBLISH, META),
    "WriteRegistry/FinishWrite": Guarded(_PUBLISH, META),
    "WriteRegistry/CommitWrite": Guarded(_PUBLISH, META),
    "WriteRegistry/AbandonWrite": Guarded(_PUBLISH, META_ONCE),
    "WriteRegistry/ListWriters": Guarded(_PUBLISH, META),
    "Backups/TakeBackup": Guarded(Needs("admin"), HERE),
    "Health/Check": Guarded(OPEN, HERE),
    "Health/List": Guarded(OPEN, HERE),
    "Health/Watch": Guarded(OPEN, HERE),
    "ServerReflection/ServerReflectionInfo": Guarded(_ANY, HERE),
}
"""By service and method. One that is missing keeps the node from starting."""
