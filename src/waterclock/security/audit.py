"""The audit: what is written of who was refused, and of who changed something. Pure.

An entry is one JSON object (docs/formats/audit.md). Denials are noted by the thousand if somebody
wants that, so what is written of them is bounded: those that are alike within a tick are one entry
with a count; of one source, and of all together, there are so many entries a tick; of what is left
out, one entry says how many of which kind. Calls are noted one by one; only those of principals
that are not admins are bounded, for an admin could do worse than fill its own record.

Nothing that a client sends gets into an entry as it is: texts are bounded, and characters that are
not printable are escaped.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

TOPIC: Final = "__audit"
VERSION: Final = 1
CALLS: Final = 0
DENIALS: Final = 1
"""The partitions: however many denials there are, they push out no call."""
PARTITIONS: Final = 2

TICK_S: Final = 1.0
"""How often denials are written."""
DENIALS_MAX: Final = 50
"""Entries of a tick."""
SOURCE_DENIALS_MAX: Final = 10
"""Of one principal or, of those whom nobody knows, one address: it cannot hide the others."""
CALLS_MAX: Final = 50
"""Entries of a tick, of all principals that are not admins."""
KEPT_MAX: Final = 1_000
"""Entries that wait for the disk, if it takes none."""
TEXT_CHARS_MAX: Final = 256

Outcome = Literal["allowed", "denied", "failed"]
Transport = Literal["http", "grpc"]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What happened once or, of denials that are alike, `count` times. All fields are always there;
    a text that is not known, or means nothing here, is empty."""

    version: int = VERSION
    time_ms: int
    outcome: Outcome
    principal: str = ""
    address: str = ""
    transport: Transport | Literal[""] = ""
    operation: str = ""
    topic: str = ""
    stream: str = ""
    group: str = ""
    name: str = ""
    """Of what is none of these: a recurrence, a replay."""
    error: str = ""
    request_id: str = ""
    count: int = 1
    left_out: dict[str, int] = {}
    """How many there were of which error that have no entry."""

    def encode(self) -> bytes:
        """Return it as it is stored."""
        return msgspec.json.encode(self)


class AuditBook:
    """What is noted and not written yet. Time is the caller's, who calls `tick`."""

    def __init__(self) -> None:
        self._calls: list[AuditEntry] = []
        self._calls_noted = 0
        """In this tick, of principals that are not admins."""
        self._calls_left_out: Counter[str] = Counter()
        self._denials: dict[tuple[str, ...], AuditEntry] = {}
        self._sources: Counter[str] = Counter()
        self._denials_left_out: Counter[str] = Counter()
        self._kept: list[AuditEntry] = []
        """Denials of earlier ticks, which could not be written."""

    def __repr__(self) -> str:
        return f"<AuditBook {len(self._calls)} calls, {len(self._denials)} denials>"

    def note_call(self, entry: AuditEntry, *, is_admin: bool) -> bool:
        """Note a call; False if there were too many: then it is counted only."""
        is_bounded = not is_admin and self._calls_noted >= CALLS_MAX
        if is_bounded or len(self._calls) >= KEPT_MAX:
            self._calls_left_out[entry.principal] += 1
            return False
        self._calls_noted += not is_admin
        self._calls.append(entry)
        return True

    def note_denial(self, entry: AuditEntry) -> None:
        """Note a denial, together with those of this tick that are like it."""
        alike = _alike(entry)
        known = self._denials.get(alike)
        if known is not None:
            self._denials[alike] = msgspec.structs.replace(known, count=known.count + entry.count)
            return
        source = entry.principal or entry.address
        is_full = len(self._denials) >= DENIALS_MAX
        if is_full or self._sources[source] >= SOURCE_DENIALS_MAX:
            self._denials_left_out[entry.error] += entry.count
            return
        self._sources[source] += 1
        self._denials[alike] = entry

    def take_calls(self) -> list[AuditEntry]:
        """Return the calls to be written; that need not wait for the tick."""
        calls, self._calls = self._calls, []
        return calls

    def tick(self, now_ms: int) -> list[AuditEntry]:
        """End a tick: return its denials, to be written. Of what was left out, of denials and of
        calls, there is an entry each."""
        denials = list(self._denials.values())
        denials += _summary(self._denials_left_out, now_ms, "denied")
        self._calls += _summary(self._calls_left_out, now_ms, "allowed")
        self._calls_noted = 0
        self._denials.clear()
        for counts in (self._sources, self._denials_left_out, self._calls_left_out):
            counts.clear()
        return denials

    def take_kept_denials(self) -> list[AuditEntry]:
        """Return those that were taken back, to be written before others."""
        kept, self._kept = self._kept, []
        return kept

    @property
    def has_calls(self) -> bool:
        """There are calls to be written."""
        return bool(self._calls)

    def keep_calls(self, entries: Iterable[AuditEntry]) -> None:
        """Take back calls that could not be written; what is too much is counted."""
        for entry in entries:
            if entry.left_out:
                self._calls_left_out.update(entry.left_out)
            else:
                self.note_call(entry, is_admin=True)

    def keep_denials(self, entries: Iterable[AuditEntry]) -> None:
        """Take back denials that could not be written; what is too much is counted."""
        for entry in entries:
            if entry.left_out:
                self._denials_left_out.update(entry.left_out)
            elif len(self._kept) < KEPT_MAX:
                self._kept.append(entry)
            else:
                self._denials_left_out[entry.error] += entry.count


def printable(text: str) -> str:
    """Return a text as an entry may have it: bounded, and with nothing that moves a cursor."""
    cut = text[:TEXT_CHARS_MAX]
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
    is_whole = len(text) <= TEXT_CHARS_MAX and len(cut) <= TEXT_CHARS_MAX
    return cut if is_whole else cut[: TEXT_CHARS_MAX - 1] + "…"


def _alike(entry: AuditEntry) -> tuple[str, ...]:
    if entry.error == "QuotaExceeded":  # by the hundred a second, from whoever goes too fast
        return entry.principal, entry.error
    e = entry
    return (
        e.principal, e.address, e.transport, e.operation, e.topic, e.stream, e.group, e.name,
        e.error,
    )  # fmt: skip


def _summary(counts: Counter[str], now_ms: int, outcome: Outcome) -> list[AuditEntry]:
    if not counts:
        return []
    # Of many principals, those that did the most.
    left_out = dict(counts.most_common(SOURCE_DENIALS_MAX))
    if others := counts.total() - sum(left_out.values()):
        left_out[""] = left_out.get("", 0) + others
    return [AuditEntry(time_ms=now_ms, outcome=outcome, count=counts.total(), left_out=left_out)]
