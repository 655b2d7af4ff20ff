"""What people type, read into values: headers, positions, ids.

A mistake is a BadInput whose line shows the right form.
"""

import re
from collections.abc import Sequence
from uuid import UUID

from waterclock.model.errors import BadInput

OFFSET_MAX = (1 << 63) - 1

_POSITION = re.compile(r"([0-9]{1,9})[/:]([0-9]{1,19})", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_HEX = re.compile(r"0x((?:[0-9a-f]{2})+)", re.ASCII)


def typed_bytes(text: str) -> bytes:
    """Return what was typed as the bytes it was typed in."""
    return text.encode(errors="surrogateescape")


def maybe_bytes(text: str | None) -> bytes | None:
    """Return what was typed as bytes, if anything was."""
    return None if text is None else typed_bytes(text)


def headers_of(given: Sequence[str] | None) -> dict[str, bytes] | None:
    """Return headers written as `name=value`; None if there are none."""
    headers: dict[str, bytes] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInput(f"--header {text!r} is not of the form name=value")
        headers[name] = typed_bytes(value)
    return headers or None


def position_of(text: str) -> tuple[int, int]:
    """Return the partition and the offset of a position written `0/12`, as listings show it."""
    match = _POSITION.fullmatch(text.strip())
    if match is None or int(match[2]) > OFFSET_MAX:
        raise BadInput(f"{text!r} is not a position: write partition/offset, as in 0/12")
    return int(match[1]), int(match[2])


def ids_of(text: str) -> list[bytes]:
    """Return the ids that this can mean, the likelier first: as typed, or as listings show it."""
    ids = [typed_bytes(text)]
    if _UUID.fullmatch(text):
        ids.append(UUID(text).bytes)
    elif (match := _HEX.fullmatch(text)) is not None:
        ids.append(bytes.fromhex(match[1]))
    return ids
