"""Stretches of a topic: where to begin and end in each partition, as people write them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from waterclock.model.errors import BadInput

OFFSET_MAX = (1 << 62) - 1

_EVERYWHERE = re.compile(r"[0-9]{1,19}", re.ASCII)
_PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The offsets [start, end) of each partition."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]


def offsets_of(option: str, text: str | None, whole: Stretch) -> dict[int, int]:
    """Return offsets written `120`, for all partitions, or `0:120,1:95`; none for None."""
    if text is None:
        return {}
    if _EVERYWHERE.fullmatch(text.strip()):
        return {partition: _offset(option, text) for partition in whole.starts}
    found: dict[int, int] = {}
    for each in text.split(","):
        match = _PLACE.fullmatch(each.strip())
        if match is None:
            raise BadInput(f"{option} {text!r}: write one offset for all partitions, or 0:120,1:95")
        if int(match[1]) not in whole.starts:
            raise BadInput(f"{option}: the topic has no partition {match[1]}")
        found[int(match[1])] = _offset(option, match[2])
    return found


def narrowed(whole: Stretch, starts: Mapping[int, int], ends: Mapping[int, int]) -> Stretch:
    """Return the part of the log within these bounds; where there is none, all or none of it."""
    made_starts, made_ends = {}, {}
    for partition, first in whole.starts.items():
        last = whole.ends[partition]
        made_starts[partition] = min(max(starts.get(partition, first), first), last)
        made_ends[partition] = min(max(ends.get(partition, last), made_starts[partition]), last)
    return Stretch(made_starts, made_ends)


def to_json(offsets: Mapping[int, int]) -> str:
    """Return offsets as the connector takes them."""
    return json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())})


def _offset(option: str, text: str) -> int:
    if int(text) > OFFSET_MAX:
        raise BadInput(f"{option} {text}: an offset is at most {OFFSET_MAX}")
    return int(text)
