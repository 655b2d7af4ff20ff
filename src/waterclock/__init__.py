"""Waterclock: a messaging system where when a message is delivered matters as much as to whom.

What stands in `__all__` is all there is to rely on. Names are loaded when first used, so that
`import waterclock` alone costs nothing: Arrow takes half a second to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waterclock.model.message import Message
    from waterclock.storage.local_log import open_log

__all__ = ["Message", "__version__", "open_log"]

__version__ = "0.1.0"

_HOMES = {"Message": "waterclock.model.message", "open_log": "waterclock.storage.local_log"}


def __getattr__(name: str) -> object:
    """Load a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
