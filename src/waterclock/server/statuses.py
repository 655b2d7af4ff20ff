"""How a failed call is answered: the one table from our errors to gRPC's codes.

A client learns the code, a sentence, and in the trailing metadata the error's name and facts:

    waterclock-error: LimitExceeded
    waterclock-field: batch messages
    waterclock-limit: 100000

An error that is not ours is a bug of ours: the client gets INTERNAL and an id, the log the same id
and the traceback, and the node goes on.
"""

import logging
import os
from collections.abc import Mapping
from typing import NamedTuple, assert_never

from grpc import StatusCode

from waterclock.cluster.remote_calls import UnforeseenElsewhere
from waterclock.model.errors import (
    AlreadyExists,
    BadInput,
    Busy,
    CapacityReached,
    Closed,
    Damaged,
    Fenced,
    Forbidden,
    NotAuthenticated,
    NotFound,
    NotSupported,
    OffsetOutOfRange,
    Overloaded,
    PartitionFaulty,
    Stopping,
    StorageError,
    StorageFull,
    Unavailable,
    UnknownTopic,
    WaterclockError,
)
from waterclock.node.groups.session import Ending

log = logging.getLogger(__name__)

STATUSES: Mapping[type[WaterclockError], StatusCode] = {
    BadInput: StatusCode.INVALID_ARGUMENT,
    CapacityReached: StatusCode.RESOURCE_EXHAUSTED,
    NotAuthenticated: StatusCode.UNAUTHENTICATED,
    Forbidden: StatusCode.PERMISSION_DENIED,
    NotFound: StatusCode.NOT_FOUND,
    AlreadyExists: StatusCode.ALREADY_EXISTS,
    Busy: StatusCode.FAILED_PRECONDITION,
    NotSupported: StatusCode.UNIMPLEMENTED,
    OffsetOutOfRange: StatusCode.OUT_OF_RANGE,
    Unavailable: StatusCode.UNAVAILABLE,
    Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    StorageError: StatusCode.UNAVAILABLE,
    StorageFull: StatusCode.RESOURCE_EXHAUSTED,
    Damaged: StatusCode.DATA_LOSS,
    PartitionFaulty: StatusCode.FAILED_PRECONDITION,
    Closed: StatusCode.UNAVAILABLE,
}
"""The nearest class in an error's ancestry decides."""

DETAILS_CHARS_MAX = 1_000
FACT_CHARS_MAX = 250
"""Trailing metadata is limited to 8 KiB by default, in gRPC."""


class Status(NamedTuple):
    """How a call ended."""

    code: StatusCode
    details: str
    trailers: tuple[tuple[str, str], ...]


def status_of(error: BaseException, where: str) -> Status:
    """Return what to tell the client; `where` is for the log, if the error is a bug of ours."""
    found = ours(error)
    if isinstance(error, UnforeseenElsewhere):
        facts_elsewhere = (("waterclock-error-id", error.error_id),)
        return Status(StatusCode.INTERNAL, str(error), facts_elsewhere)
    if found is None:
        error_id = log_unforeseen(where, error)
        details = f"something unforeseen happened, logged as error {error_id}"
        return Status(StatusCode.INTERNAL, details, (("waterclock-error-id", error_id),))
    facts = [("waterclock-error", type(found).__name__)]
    facts += [
        (f"waterclock-{name}", _fact(value))
        for name, value in vars(found).items()
        if isinstance(value, int | str)
    ]
    return Status(code_of(found), str(found)[:DETAILS_CHARS_MAX], tuple(facts))


def code_of(error: WaterclockError) -> StatusCode:
    """Return the gRPC code of an error of ours."""
    for ancestor in type(error).__mro__:
        if ancestor in STATUSES:
            return STATUSES[ancestor]
    return StatusCode.UNKNOWN


def session_error(ending: Ending, topic: str) -> WaterclockError:
    """Return the error for a member whose session has ended."""
    match ending:
        case Ending.LEFT | Ending.BROKEN | Ending.SILENT:
            return Unavailable(ending.value)
        case Ending.REPLACED:
            # Not `Unavailable`: two clients of one name would replace each other for ever.
            return Busy(ending.value)
        case Ending.MOVED:
            return Fenced(ending.value)
        case Ending.STOPPING:
            return Stopping(ending.value)
        case Ending.TOPIC_GONE:
            return UnknownTopic(topic)
        case _:
            assert_never(ending)


def ours(error: BaseException) -> WaterclockError | None:
    """Return the error of ours that this is, or holds in a group beside nothing worse."""
    if isinstance(error, WaterclockError):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [ours(part) for part in error.exceptions]
    return found[0] if all(part is not None for part in found) else None


def log_unforeseen(where: str, error: BaseException) -> str:
    """Log a bug of ours with its traceback; return the id to find it by."""
    error_id = os.urandom(4).hex()
    log.error("unforeseen error_id=%s where=%s", error_id, where, exc_info=error)
    return error_id


def _fact(value: int | str) -> str:
    # Metadata is printable ASCII; names of topics nobody has may be anything.
    text = str(value)[:FACT_CHARS_MAX]
    return text if text.isascii() and text.isprintable() else ascii(text)[1:-1][:FACT_CHARS_MAX]
