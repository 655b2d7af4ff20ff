"""Waterclock: a messaging system where when a message is delivered matters as much as to whom.

What stands in `__all__` is all there is to rely on. Names are loaded when first used, so that
`import waterclock` alone costs nothing: Arrow takes half a second to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waterclock.client._sync.client import BlockingClient, connect_blocking
    from waterclock.client._sync.following import BlockingFollowing
    from waterclock.client._sync.subscription import BlockingSubscription
    from waterclock.client.client import Client, connect
    from waterclock.client.consumer.delivery import ReceivedBatch, ReceivedMessage
    from waterclock.client.consumer.rows import LoggedMessage
    from waterclock.client.consumer.subscription import Subscription
    from waterclock.client.due import Cron, Every
    from waterclock.client.encryption import Keys
    from waterclock.client.results import Receipt, SomeFailed
    from waterclock.client.settings import ClientSettings
    from waterclock.client.streams.following import Following
    from waterclock.client.streams.results import Sent, StoredAt, StreamMessage
    from waterclock.model.errors import (
        AlreadyExists,
        BadInput,
        Busy,
        CannotDecrypt,
        CapacityReached,
        Closed,
        Forbidden,
        Gone,
        LimitExceeded,
        MatchTimeout,
        NodeFailed,
        NotAuthenticated,
        NotFound,
        NotSupported,
        OffsetOutOfRange,
        Overloaded,
        QuotaExceeded,
        Stopping,
        StorageFull,
        StoreUnavailable,
        TimedOut,
        Unavailable,
        UnknownTopic,
        Unreachable,
        WaterclockError,
    )
    from waterclock.model.message import Message
    from waterclock.model.views import (
        DeadLetter,
        GroupInfo,
        NodeInfo,
        Recurrence,
        ScheduledMessage,
        StreamInfo,
        TopicInfo,
    )
    from waterclock.storage.local_log import open_log

__all__ = [
    "AlreadyExists",
    "BadInput",
    "BlockingClient",
    "BlockingFollowing",
    "BlockingSubscription",
    "Busy",
    "CannotDecrypt",
    "CapacityReached",
    "Client",
    "ClientSettings",
    "Closed",
    "Cron",
    "DeadLetter",
    "Every",
    "Following",
    "Forbidden",
    "Gone",
    "GroupInfo",
    "Keys",
    "LimitExceeded",
    "LoggedMessage",
    "MatchTimeout",
    "Message",
    "NodeFailed",
    "NodeInfo",
    "NotAuthenticated",
    "NotFound",
    "NotSupported",
    "OffsetOutOfRange",
    "Overloaded",
    "QuotaExceeded",
    "Receipt",
    "ReceivedBatch",
    "ReceivedMessage",
    "Recurrence",
    "ScheduledMessage",
    "Sent",
    "SomeFailed",
    "Stopping",
    "StorageFull",
    "StoreUnavailable",
    "StoredAt",
    "StreamInfo",
    "StreamMessage",
    "Subscription",
    "TimedOut",
    "TopicInfo",
    "Unavailable",
    "UnknownTopic",
    "Unreachable",
    "WaterclockError",
    "__version__",
    "connect",
    "connect_blocking",
    "open_log",
]

__version__ = "0.1.0"

_NAMES = {
    "waterclock.client._sync.client": ["BlockingClient", "connect_blocking"],
    "waterclock.client._sync.following": ["BlockingFollowing"],
    "waterclock.client._sync.subscription": ["BlockingSubscription"],
    "waterclock.client.client": ["Client", "connect"],
    "waterclock.client.consumer.subscription": ["Subscription"],
    "waterclock.client.due": ["Cron", "Every"],
    "waterclock.client.encryption": ["Keys"],
    "waterclock.client.streams.following": ["Following"],
    "waterclock.client.consumer.delivery": ["ReceivedBatch", "ReceivedMessage"],
    "waterclock.client.results": ["Receipt", "SomeFailed"],
    "waterclock.client.consumer.rows": ["LoggedMessage"],
    "waterclock.client.settings": ["ClientSettings"],
    "waterclock.client.streams.results": ["Sent", "StoredAt", "StreamMessage"],
    "waterclock.model.errors": [
        "AlreadyExists",
        "BadInput",
        "Busy",
        "CannotDecrypt",
        "CapacityReached",
        "Closed",
        "Forbidden",
        "Gone",
        "LimitExceeded",
        "MatchTimeout",
        "NodeFailed",
        "NotAuthenticated",
        "NotFound",
        "NotSupported",
        "OffsetOutOfRange",
        "Overloaded",
        "QuotaExceeded",
        "Stopping",
        "StorageFull",
        "StoreUnavailable",
        "TimedOut",
        "Unavailable",
        "UnknownTopic",
        "Unreachable",
        "WaterclockError",
    ],
    "waterclock.model.message": ["Message"],
    "waterclock.model.views": [
        "DeadLetter",
        "GroupInfo",
        "NodeInfo",
        "Recurrence",
        "ScheduledMessage",
        "StreamInfo",
        "TopicInfo",
    ],
    "waterclock.storage.local_log": ["open_log"],
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
