"""What every gRPC method needs: the right, and which fields of its request say what it is about.

A field may stand in a part of the request (`open.topic`). A stream names it in the requests that
have that part, and each of those is checked. The kinds of rights are told apart in
`server/access.py`; HTTP declares the same beside its operations.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from waterclock.security.rights import OPEN, Needs, Rights
from waterclock.server.counts import Made

Show = Callable[[Rights, Any], None]


class Guarded(NamedTuple):
    """A method as the table has it."""

    needs: Needs
    named: tuple[str, str] | None = None
    """What has a topic of its own, a recurrence or a replay, and the field with its name: that
    topic counts too."""
    is_publish: bool = False
    """Its requests count against the bytes/s of who asks."""
    makes: tuple[Made, ...] = ()
    """What it makes if it is not there, which counts against the quotas of who asks."""
    show: Show | None = None
    """Takes out of an answer what one may not see."""
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
_ANY = Needs("read", is_list=True)
"""Whoever is known may ask."""

METHODS: Mapping[str, Guarded] = {
    "Broker/Publish": Guarded(_PUBLISH, is_publish=True, makes=("topic",)),
    "Broker/PublishBatch": Guarded(_PUBLISH, is_publish=True, makes=("topic",)),
    "Broker/PublishStream": Guarded(
        Needs("publish", topic="batch.topic"), is_publish=True, makes=("topic",)
    ),
    "Broker/Subscribe": Guarded(
        Needs("consume", topic="open.topic", group="open.group"), makes=("topic", "group")
    ),
    "Broker/Fetch": Guarded(_READ),
    "Broker/Replay": Guarded(Needs("read", topic="begin.topic"), named=("replay", "begin.name")),
    "Scheduler/Cancel": Guarded(_SCHEDULE),
    "Scheduler/Reschedule": Guarded(_SCHEDULE),
    "Scheduler/CancelWhere": Guarded(_SCHEDULE),
    "Scheduler/ListScheduled": Guarded(_READ),
    "Scheduler/CountScheduled": Guarded(_READ),
    "Scheduler/PutRecurrence": Guarded(
        Needs("schedule", topic="recurrence.topic"),
        named=("recurrence", "recurrence.name"),
        makes=("topic",),
        is_change=True,
    ),
    "Scheduler/DeleteRecurrence": Guarded(
        Needs("schedule"), named=("recurrence", "name"), is_change=True
    ),
    "Scheduler/ListRecurrences": Guarded(
        Needs("read", topic="topic", is_list=True),
        show=_only("recurrences", lambda rights, each: rights.allows("read", topic=each.topic)),
    ),
    "Admin/CreateTopic": Guarded(_PUBLISH, makes=("topic",), is_change=True),
    "Admin/UpdateTopic": Guarded(_ADMIN),
    "Admin/DeleteTopic": Guarded(_ADMIN),
    "Admin/GetTopic": Guarded(_READ),
    "Admin/ListTopics": Guarded(
        _ANY, show=_only("topics", lambda rights, each: rights.sees(topic=each.topic))
    ),
    "Admin/FindOffsets": Guarded(_READ),
    "Admin/ListGroups": Guarded(
        Needs("read", topic="topic", is_list=True),
        show=_only("groups", lambda rights, each: rights.sees(topic=each.topic, group=each.group)),
    ),
    "Admin/GetGroup": Guarded(Needs("read", topic="topic", group="group")),
    "Admin/DeleteGroup": Guarded(_CONSUME, is_change=True),
    "Admin/SeekGroup": Guarded(_CONSUME, makes=("group",), is_change=True),
    "Admin/ListDeadLetters": Guarded(_READ),
    "Admin/Redrive": Guarded(_PUBLISH, is_change=True),
    "Admin/PurgeDeadLetters": Guarded(_ADMIN),
    "Admin/ListReplays": Guarded(
        _ANY,
        show=_only("replays", lambda rights, each: rights.allows("read", topic=each.topic)),
    ),
    "Admin/DeleteReplay": Guarded(Needs("read"), named=("replay", "name"), is_change=True),
    "Admin/RegisterSnapshot": Guarded(_ADMIN),
    "Admin/ListSnapshots": Guarded(_READ),
    "Admin/DeleteSnapshot": Guarded(_ADMIN),
    "Admin/GetNode": Guarded(_ANY, show=_without_folder),
    "WriteRegistry/BeginWrite": Guarded(_PUBLISH),
    "WriteRegistry/FinishWrite": Guarded(_PUBLISH),
    "WriteRegistry/CommitWrite": Guarded(_PUBLISH),
    "WriteRegistry/AbandonWrite": Guarded(_PUBLISH),
    "WriteRegistry/ListWriters": Guarded(_PUBLISH),
    "Backups/TakeBackup": Guarded(Needs("admin")),
    "Health/Check": Guarded(OPEN),
    "Health/List": Guarded(OPEN),
    "Health/Watch": Guarded(OPEN),
    "ServerReflection/ServerReflectionInfo": Guarded(_ANY),
}
"""By service and method. One that is missing keeps the node from starting."""
