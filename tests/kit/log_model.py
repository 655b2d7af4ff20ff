"""What a partition log guarantees, as a plain dictionary: the oracle of the storage tests.

It is told what was done to the real store and says what the store must then answer. It knows
nothing of frames, segments or files.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from waterclock.model.message import Message


class Row(NamedTuple):
    """A message or a word about one, at its offset."""

    kind: str
    message_id: bytes = b""
    key: bytes | None = None
    value: bytes | None = None
    due_ms: int | None = None
    append_ms: int = 0
    is_tracked: bool = False
    scheduled: tuple[int, ...] = ()
    """Of a fired row its scheduled message; of a control row all it lists."""
    new_due_ms: tuple[int, ...] = ()


@dataclass(slots=True)
class LogModel:
    """The log as it must be."""

    window_ms: int
    rows: dict[int, Row] = field(default_factory=dict)
    gone: dict[int, Row] = field(default_factory=dict)
    """Rows that retention or compaction may have taken; their ids still count."""
    end: int = 0
    acknowledged_end: int = 0

    def expected(
        self, messages: Iterable[Message], *, now_ms: int, allow_duplicate: bool
    ) -> list[int | None]:
        """Return, per message, the offset it repeats, or None where it is new."""
        answers: list[int | None] = []
        for message in messages:
            known = None
            if not allow_duplicate:
                assert message.message_id is not None
                known = self.first_offset(message.message_id, now_ms)
            answers.append(known)
        return answers

    def first_offset(self, message_id: bytes, now_ms: int) -> int | None:
        """Return where an id was first published within the window."""
        since = max(now_ms, self.log_time_ms) - self.window_ms
        found = [
            offset
            for rows in (self.rows, self.gone)
            for offset, row in rows.items()
            if row.is_tracked and row.message_id == message_id and row.append_ms >= since
        ]
        return min(found, default=None)

    @property
    def log_time_ms(self) -> int:
        """When the last row was appended."""
        return max((row.append_ms for row in (self.rows | self.gone).values()), default=0)

    def add(self, offset: int, row: Row) -> None:
        """Note a row that was written at the log's end."""
        assert offset == self.end, f"offset {offset} is not the next one, {self.end}"
        self.rows[offset] = row
        self.end = offset + 1

    def open_scheduled(self) -> dict[int, int]:
        """Return offset and due time of each scheduled message neither fired nor cancelled."""
        opened: dict[int, int] = {}
        for offset, row in sorted((self.rows | self.gone).items()):
            if row.kind == "SCHEDULED":
                assert row.due_ms is not None
                opened[offset] = row.due_ms
            elif row.kind == "RESCHEDULE":
                moved = zip(row.scheduled, row.new_due_ms, strict=True)
                opened.update((p, due) for p, due in moved if p in opened)
            elif row.kind in ("FIRED", "CANCEL"):
                for scheduled in row.scheduled:
                    opened.pop(scheduled, None)
        return opened

    def cancelled(self) -> list[int]:
        """Return the scheduled messages that were cancelled and whose ids are remembered."""
        known = self.rows | self.gone
        since = self.log_time_ms - self.window_ms
        named = [p for row in known.values() if row.kind == "CANCEL" for p in row.scheduled]
        return [scheduled for scheduled in named if known[scheduled].append_ms >= since]

    def lose_tail(self, end: int) -> None:
        """A crash took the rows from `end` on: lawful only if none was acknowledged."""
        assert end >= self.acknowledged_end, f"acknowledged to {self.acknowledged_end}, has {end}"
        assert end <= self.end, "a crash cannot add rows"
        for offset in range(end, self.end):
            self.rows.pop(offset, None)
            self.gone.pop(offset, None)
        self.end = end

    def release(self, below: int) -> None:
        """Retention may take messages below an offset, open scheduled messages apart."""
        opened = self.open_scheduled()
        for offset in [o for o in self.rows if o < below and o not in opened]:
            if self.rows[offset].kind in ("DATA", "FIRED", "SCHEDULED", "CANCEL", "RESCHEDULE"):
                self.gone[offset] = self.rows.pop(offset)

    def compact_by_key(self, *, below: int, closed_end: int, tombstones_from_ms: int) -> None:
        """Compaction may take all but the latest of each key, below both offsets."""
        latest: dict[bytes, int] = {}
        for offset, row in sorted(self.rows.items()):
            if row.kind in ("DATA", "FIRED") and row.key is not None:
                latest[row.key] = offset
        opened = self.open_scheduled()
        for offset in [o for o in self.rows if o < closed_end]:
            row = self.rows[offset]
            if row.kind in ("DATA", "FIRED"):
                is_latest = row.key is None or latest[row.key] == offset
                is_spent = row.value is None and row.append_ms < tombstones_from_ms
                if offset >= below or (is_latest and not is_spent):
                    continue
            if offset not in opened:
                self.gone[offset] = self.rows.pop(offset)
