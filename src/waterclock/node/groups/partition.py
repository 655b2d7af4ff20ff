"""A group in one partition: its cursor, the log it reads, the session that owns the partition."""

from collections.abc import Callable

from waterclock.delivery.cursor import Cursor
from waterclock.delivery.spans import SpanMap
from waterclock.model.errors import BadInput, PartitionFaulty
from waterclock.model.sections import DeliveryConfig
from waterclock.model.views import GroupPartitionInfo
from waterclock.node.groups.session import Session
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import LogReader
from waterclock.node.partition.remote_log import PartitionLog, RemoteLog

SET_BY_MS_MIN = 1_000
"""A wall clock that was set by less is not worth a write."""


class GroupPartition:
    """Belongs to a `GroupHost`, which alone changes it."""

    def __init__(
        self, host: PartitionHost, log: PartitionLog | None, cursor: Cursor, *, run_id: str
    ) -> None:
        self.host = host
        self.run_id = run_id
        """Names this run of the group through the log, for the ids of dead letters."""
        self.number = host.partition
        self.cursor = cursor
        self.session: Session | None = None
        """The owner's."""
        self.unsent: SpanMap[None] = SpanMap()
        """Queued for the owner and not sent: the cursor has leased it, the owner cannot know it."""
        self.missed = 0
        """Messages that retention took before the group had done them."""
        self.is_changed = False
        """There is progress that was not saved."""
        self._saved_shift_ms = 0
        """By how much the wall clock had been set when progress was saved ..."""
        self._has_saved_waits = True
        """... and whether there were messages that waited then, for all that is known."""
        self.problem: str | None = None
        """Why the log cannot be read here."""
        self.stop_listening: Callable[[], None] = lambda: None
        self._log = log

    def __repr__(self) -> str:
        owner = self.session.member if self.session else "nobody"
        return f"<GroupPartition {self.host.topic}/{self.number} of {owner}, {self.cursor!r}>"

    def encode(self, *, shift_ms: int) -> bytes:
        """Return progress to be saved, its times moved by so much: to those of the wall clock."""
        self._saved_shift_ms = shift_ms
        self._has_saved_waits = self.cursor.has_waits
        return self.cursor.encode(shift_ms=shift_ms)

    def must_save(self, *, shift_ms: int) -> bool:
        """Tell whether what was saved is not true any more.

        When the wall clock is set, waits that were saved as its times end at others.
        """
        set_by_ms = abs(shift_ms - self._saved_shift_ms)
        return self.is_changed or (self._has_saved_waits and set_by_ms >= SET_BY_MS_MIN)

    def info(self) -> GroupPartitionInfo:
        """Return how far the group is here now, for administrators."""
        cursor, end = self.cursor, self.end
        return GroupPartitionInfo(
            self.number,
            "" if self.session is None else self.session.member,
            cursor.committed,
            end,
            cursor.lag(end),
            cursor.unacked,
            cursor.waiting,
            self.missed,
        )

    @property
    def log(self) -> PartitionLog:
        """The log; raises PartitionFaulty if the partition could not be opened."""
        if self._log is None:
            raise PartitionFaulty(f"{self.host.topic}/{self.number} is not open")
        return self._log

    def reopen(self, log: PartitionLog | None) -> None:
        """Go on with the log as it was opened anew; None: it was closed."""
        self._log = log
        self.problem = None

    def has(self, start: int, end: int) -> bool:
        """Say if [start, end) can be read now; of a log elsewhere, its beginning."""
        return self._log is not None and self._log.has(start, end)

    def listen(self, serve: Callable[[], None]) -> None:
        """Have something called when there is more to read."""
        log = self.log
        flush_queue = log if isinstance(log, RemoteLog) else self.host.flush_queue
        self.stop_listening = flush_queue.on_readable(serve)

    @property
    def is_readable(self) -> bool:
        """There is a log, and nothing stands in the way of reading it."""
        return self._log is not None and self.problem is None

    @property
    def end(self) -> int:
        """One past the last offset that can be read."""
        return self.cursor.read_from if self._log is None else self._log.end

    @property
    def has_work(self) -> bool:
        """There are messages to hand out, were there credit."""
        is_behind = self.is_readable and self.cursor.read_from < self.log.end
        return is_behind or bool(self.cursor.backlog)


def cursor_from(
    saved: bytes | None,
    config: DeliveryConfig,
    *,
    log: PartitionLog | None,
    has_dead_letters: bool,
    is_replicated: bool = False,
) -> tuple[Cursor, str | None]:
    """Return the cursor that was saved, and what is wrong with it if it must begin anew."""
    start = 0 if log is None else log.start
    if saved is None:
        return Cursor(config, committed=start, has_dead_letters=has_dead_letters), None
    # The replica here may be behind; what a group was given is committed, and lost nowhere.
    log_end = None
    if isinstance(log, LogReader) and not is_replicated:
        log_end = log.store.end
    try:
        cursor = Cursor.decode(saved, config, log_end=log_end, has_dead_letters=has_dead_letters)
    except BadInput as error:
        # Delivering twice is allowed, passing over is not.
        return Cursor(config, committed=start, has_dead_letters=has_dead_letters), str(error)
    return cursor, None
