"""Which trace a message or a request belongs to: the headers of W3C Trace Context, level 1.

They are handed on by all that a message passes, also where nobody makes spans.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
STATE_BYTES_MAX = 512
"""What everybody must be able to hand on; a longer state is dropped."""

Header = tuple[str, bytes | None]
Pairs = list[tuple[str, bytes]]

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


@dataclass(frozen=True, slots=True)
class Trace:
    """Which trace a message belongs to."""

    trace_id: str
    span_id: str
    """The span of the sender."""
    flags: str = "01"
    state: str = ""
    """The header `tracestate`, as it came."""

    def headers(self) -> list[Header]:
        """Return the headers that carry it on."""
        parent = f"00-{self.trace_id}-{self.span_id}-{self.flags}"
        found: list[Header] = [(TRACEPARENT, parent.encode())]
        return [*found, (TRACESTATE, self.state.encode())] if self.state else found


def is_traceparent(text: bytes) -> bool:
    """Return whether this names a trace and a span."""
    return _match(text) is not None


def trace_of(headers: Iterable[Header]) -> Trace | None:
    """Return the trace that headers name."""
    found = dict(headers)
    match = _match(found.get(TRACEPARENT) or b"")
    if match is None:
        return None
    state = (found.get(TRACESTATE) or b"").decode("ascii", "replace")
    return Trace(match[2].decode(), match[3].decode(), match[4].decode(), state)


def has_trace(headers: Sequence[Header]) -> bool:
    """Return whether headers name a trace already, well or not: they are not ours to change."""
    return any(name == TRACEPARENT for name, _ in headers)


def _match(text: bytes) -> re.Match[bytes] | None:
    match = _TRACEPARENT.fullmatch(text)
    # A version "ff" and ids of zeros are not allowed.
    if match is None or match[1] == b"ff" or match[2] == _NO_TRACE or match[3] == _NO_SPAN:
        return None
    return None if match[1] == b"00" and len(match[0]) != 55 else match
