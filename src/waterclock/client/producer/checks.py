"""What is checked before a message joins a batch: no mistake may cost a neighbour its publish.

Types, because Arrow refuses or bends them for the whole batch; sizes, because the node does. The
limits are the node's own. Whatever else the node refuses, the producer finds by taking the batch
apart.
"""

from collections.abc import Mapping, Sequence

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.message import Message

HeaderPairs = list[tuple[str, bytes]]

MESSAGE_OVERHEAD_BYTES = 64
"""What a message takes besides its own bytes, here and in Arrow: id, offsets, due time."""

_INT64_MAX = (1 << 63) - 1
_BYTES_OR_NONE = {bytes, type(None)}


def as_bytes(field: str, value: object) -> bytes:
    """Return a bytes-like value as bytes; raise BadInput for anything else."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = ": encode it" if isinstance(value, str) else ""
    raise BadInput(f"{field} must be bytes, not {type(value).__name__}{hint}")


def checked_headers(headers: object) -> HeaderPairs:
    """Return headers as pairs; raise BadInput unless they map text to bytes."""
    if not isinstance(headers, Mapping):
        raise BadInput(f"headers must be a mapping, not {type(headers).__name__}")
    pairs = []
    for name, value in headers.items():
        if not isinstance(name, str):
            raise BadInput(f"headers: the name {name!r} must be str")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"headers: the name {name!r} is not valid text") from error
        pairs.append((name, as_bytes(f"headers[{name!r}]", value)))
    return pairs


def message_bytes(
    value: bytes | None, key: bytes | None, message_id: bytes | None, pairs: HeaderPairs | None
) -> int:
    """Return how large the node will find a message."""
    size = 16 if message_id is None else len(message_id)
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if pairs:
        size += sum(len(name.encode()) + len(text) for name, text in pairs)
    return size


def checked_messages(messages: Sequence[Message], *, bytes_max: int) -> list[int]:
    """Return the size of each message; raise BadInput that names the first bad one."""
    if _are_plain(messages):
        sizes = [len(m.value or b"") + len(m.key or b"") + 16 for m in messages]
        if max(sizes, default=0) <= bytes_max:
            return sizes
    return [_checked(at, message, bytes_max) for at, message in enumerate(messages)]


def _are_plain(messages: Sequence[Message]) -> bool:
    """Return whether all are of the common kind, by whole columns."""
    return (
        {type(message) for message in messages} == {Message}
        and {type(m.value) for m in messages} <= _BYTES_OR_NONE
        and {type(m.key) for m in messages} <= _BYTES_OR_NONE
        and all(m.headers is None and m.message_id is None and m.due_ms is None for m in messages)
    )


def _checked(at: int, message: Message, bytes_max: int) -> int:
    try:
        return checked_size(message, bytes_max=bytes_max)
    except LimitExceeded as error:
        raise LimitExceeded(f"messages[{at}]: {error.field}", error.limit, got=error.got) from error
    except BadInput as error:
        raise BadInput(f"messages[{at}]: {error}") from error


def checked_size(message: Message, *, bytes_max: int) -> int:
    """Return the size of a message; raise BadInput for what is wrong with it."""
    if not isinstance(message, Message):
        raise BadInput(f"must be a Message, not {type(message).__name__}")
    for field in ("value", "key", "message_id"):
        got = getattr(message, field)
        if got is not None and type(got) is not bytes:
            raise BadInput(f"{field} must be bytes, not {type(got).__name__}")
    if message.message_id == b"":
        raise BadInput("message_id must not be empty")
    pairs = None if message.headers is None else checked_headers(message.headers)
    check_due(message.due_ms)
    size = message_bytes(message.value, message.key, message.message_id, pairs)
    if size > bytes_max:
        raise LimitExceeded("message bytes", bytes_max, got=size)
    return size


def check_due(due_ms: object) -> None:
    """Raise BadInput unless this can be a due time."""
    if due_ms is None:
        return
    if type(due_ms) is not int or not 0 <= due_ms <= _INT64_MAX:
        raise BadInput(f"due_ms must be whole milliseconds since 1970 (got {due_ms!r})")
