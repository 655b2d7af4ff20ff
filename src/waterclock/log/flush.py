"""When to fsync, and how far appended messages may be acknowledged. A pure plan; shells do the I/O.

`always`    each append is fsynced before it returns: one publish, one fsync.
`group`     one fsync in flight; everything that waited meanwhile shares the next. The default:
            the slower the disk, the larger the groups, so throughput stays and latency is at most
            two fsyncs.
`interval`  acknowledged when written to the page cache, fsynced every `interval_ms`: a crash of the
            *machine* may lose that much. A crash of the process loses nothing.
"""

from waterclock.model.sections import Fsync


class FlushPlan:
    """How far the log is appended, being fsynced, and fsynced."""

    __slots__ = (
        "appended_end",
        "flushed_end",
        "interval_ms",
        "is_syncing",
        "last_sync_ms",
        "policy",
    )

    def __init__(self, policy: Fsync, *, interval_ms: int, end: int) -> None:
        self.policy = policy
        self.interval_ms = interval_ms
        self.appended_end = end
        self.flushed_end = end
        self.is_syncing = False
        self.last_sync_ms = 0

    def __repr__(self) -> str:
        return f"<FlushPlan {self.policy}, {self.flushed_end} of {self.appended_end} flushed>"

    @property
    def acknowledged_end(self) -> int:
        """Messages below this may be acknowledged and read."""
        return self.appended_end if self.policy == "interval" else self.flushed_end

    def wants_sync(self, now_ms: int) -> bool:
        """Tell whether an fsync should start now."""
        if self.is_syncing or self.flushed_end >= self.appended_end:
            return False
        return self.policy != "interval" or now_ms >= self.last_sync_ms + self.interval_ms

    def start(self, now_ms: int) -> int:
        """Note that an fsync starts; return the end it will make durable when it succeeds."""
        assert not self.is_syncing, "one fsync in flight"
        self.is_syncing = True
        self.last_sync_ms = now_ms
        return self.appended_end

    def finish(self, end: int) -> None:
        """Note that the fsync succeeded."""
        self.is_syncing = False
        self.advance(end)

    def advance(self, end: int) -> None:
        """Note that everything below `end` is durable, by whatever fsync."""
        assert end <= self.appended_end
        self.flushed_end = max(self.flushed_end, end)
