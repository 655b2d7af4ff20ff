"""The user's function: found by its name, called with what a message says.

    def handle(message):                 # or async def; or handle(message, delivery)
        return {"device": message["device"], "celsius": message["value"]}

It is given the parsed JSON, and returns what to write: a mapping (the fields of the entry), bytes
or text (one field, `data`), or None to write nothing. Raise `PermanentError` for a message that no
retry mends: it goes to the dead stream at once. Anything else that is raised is tried again
elsewhere.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from waterclock.dispatch.frames import uuid_text
from waterclock.model.errors import BadInput, WaterclockError

REASON_CHARS_MAX = 300

Written = Mapping[str, object] | bytes | str | None
"""What a handler may return."""


class PermanentError(WaterclockError):
    """Raise this in a handler: the message cannot be processed, by nobody."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What is known of a message besides its body, for handlers that take a second argument."""

    id: bytes
    birth_ms: int
    deliveries: int
    """How often the message was handed out, this time included."""

    @property
    def uuid(self) -> str:
        """The id as text: the same however often the message comes."""
        return uuid_text(self.id)


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that was found."""

    name: str
    call: Callable[..., Any]
    is_async: bool
    wants_delivery: bool


def load(name: str, *, folder: Path | None = None) -> Handler:
    """Return the function `module:function`; a folder is searched before everything else."""
    module_name, colon, path = name.partition(":")
    if not (colon and module_name and path):
        raise BadInput(f"{name!r} is no handler: write module:function")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        function = attrgetter(path)(import_module(module_name))
    except (ImportError, AttributeError) as error:
        raise BadInput(f"there is no handler {name!r}: {error}") from error
    return handler_of(function, name=name)


def handler_of(function: Callable[..., Any], *, name: str = "") -> Handler:
    """Return a function as a handler; refuse what cannot be called with a message."""
    if not callable(function):
        raise BadInput(f"handler {name!r} is not a function")
    try:
        signature = inspect.signature(function)
    except ValueError:  # of some functions written in C nobody knows
        return Handler(name, function, is_async=False, wants_delivery=False)
    wants_delivery = _accepts(signature, 2)
    if not (wants_delivery or _accepts(signature, 1)):
        raise BadInput(f"handler {name!r} takes neither (message) nor (message, delivery)")
    called = function.func if isinstance(function, partial) else function
    is_async = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(
        getattr(called, "__call__", None)  # noqa: B004 - an object with an async __call__
    )
    return Handler(name or repr(function), function, is_async, wants_delivery)


def _accepts(signature: inspect.Signature, count: int) -> bool:
    needed = [
        each
        for each in signature.parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_POSITIONAL
    ]
    if count > 1 and len(needed) < count:  # an optional second argument is the function's own
        return False
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def parse_json(body: bytes) -> object:
    """Return what a body says; refuse for good what is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"the body is no JSON: {error}") from None


def reason_of(error: BaseException) -> tuple[str, bool]:
    """Return what is told of an error, and whether no retry mends it."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # one that cannot say what it is
        text = type(error).__name__
    return text[:REASON_CHARS_MAX], isinstance(error, PermanentError)
