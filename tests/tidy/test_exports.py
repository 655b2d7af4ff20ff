"""The public surface is a list: what `import waterclock` offers is written down here."""

import importlib
from pathlib import Path
from types import ModuleType

import waterclock

SRC = Path(__file__).parents[2] / "src"

PUBLIC = [
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
"""What a user may import from `waterclock`: a name added is a promise, a name removed a break."""


def packages(root: Path) -> list[str]:
    return [
        ".".join(file.parent.relative_to(root).parts) for file in sorted(root.rglob("__init__.py"))
    ]


def wrong_exports(module: ModuleType) -> list[str]:
    names = list(getattr(module, "__all__", []))
    found = [f"{module.__name__} lacks {name}" for name in names if not hasattr(module, name)]
    # Duplicates would survive a plain sort.
    if names != sorted(set(names)):
        found.append(f"{module.__name__}.__all__ is not sorted")
    return found


def test_exported_names_exist_and_are_sorted():
    modules = [importlib.import_module(name) for name in packages(SRC)]

    assert [line for module in modules for line in wrong_exports(module)] == []


def test_the_public_surface_is_the_documented_one():
    assert list(getattr(waterclock, "__all__", [])) == PUBLIC


def test_a_wrong_export_is_found():
    module = ModuleType("planted")
    module.connect = print  # type: ignore[attr-defined]

    module.__all__ = ["connect"]  # type: ignore[attr-defined]
    assert wrong_exports(module) == []
    module.__all__ = ["connect", "absent"]  # type: ignore[attr-defined]
    assert wrong_exports(module) == ["planted lacks absent", "planted.__all__ is not sorted"]


def test_every_package_is_looked_at(plant):
    plant("waterclock/__init__.py", "")

    assert packages(plant("waterclock/log/__init__.py", "")) == ["waterclock", "waterclock.log"]
