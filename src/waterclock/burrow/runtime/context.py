"""What a function can ask about the message it works on, however deep it is called.

A worker sets it before each call, so it holds in everything the function awaits and in tasks it
starts. A trace is carried by the W3C header `traceparent`; `trace_headers` hands it on.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from waterclock.burrow.core.records import Header, Record
from waterclock.runtime.worker_pool import current_item

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


@dataclass(frozen=True, slots=True)
class Trace:
    """Which trace a message belongs to (W3C Trace Context, level 1)."""

    trace_id: str
    span_id: str
    """Of whoever sent the message."""
    flags: str = "01"
    state: str = ""
    """The header `tracestate`, as it came."""

    def headers(self) -> list[Header]:
        """Return the headers that carry it on."""
        parent = f"00-{self.trace_id}-{self.span_id}-{self.flags}"
        found: list[Header] = [("traceparent", parent.encode())]
        return [*found, ("tracestate", self.state.encode())] if self.state else found


def current_record() -> Record | None:
    """Return the record that is worked on; the first, for a function of lists."""
    found: Record | list[Record] | None = current_item.get()
    return found[0] if isinstance(found, list) else found


def current_trace() -> Trace | None:
    """Return the trace of the record that is worked on; None if it has none, or none that is
    well formed."""
    record = current_record()
    return trace_of(record.headers) if record is not None and record.headers else None


def trace_headers() -> list[Header]:
    """Return headers for messages that are sent on account of the present one."""
    trace = current_trace()
    return [] if trace is None else trace.headers()


def trace_of(headers: Sequence[Header]) -> Trace | None:
    """Return the trace that headers name."""
    found = dict(headers)
    match = _TRACEPARENT.fullmatch(found.get("traceparent") or b"")
    # A version "ff" and ids of zeros are not allowed.
    if match is None or match[1] == b"ff" or match[2] == _NO_TRACE or match[3] == _NO_SPAN:
        return None
    if match[1] == b"00" and len(match[0]) != 55:
        return None
    state = (found.get("tracestate") or b"").decode("ascii", "replace")
    return Trace(match[2].decode(), match[3].decode(), match[4].decode(), state)
