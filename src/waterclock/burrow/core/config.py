"""How an engine works: every setting of the pure core, checked in one place."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from waterclock.model.errors import BadConfig

Order = Literal["none", "key", "partition"]
OnFailure = Literal["leave", "dlq", "park"]
MapText = Literal["base32768", "base64"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of the core; durations in ms."""

    order: Order = "key"
    """What must not overlap: nothing, records of one key, or records of one partition. In "key",
    records without a key run unordered."""
    queue_max: int = 1_000
    """Records of a partition held in memory, waiting, in flight or to be retried. At this number
    the partition is paused, at half of it resumed; one poll may go beyond it."""
    queue_bytes_max: int = 128 << 20
    """Bytes of keys, values and headers held for all partitions together. From half of it on those
    are paused that have more than half of their share; one poll may go beyond it, and a message
    that is larger by itself comes alone."""
    prefetch_max: int = 1_000
    """Records of all partitions that stand ready and wait for a worker only. More of them makes
    polling rarer and a stop dearer; `Engine.room` is what is left."""
    full_ms_max: int = 1_000
    """After so long without room everything is paused, so that the shell can poll to be heard."""
    retry_delay_ms: int = 100
    retry_delay_ms_max: int = 60_000
    """The n-th failure waits min(retry_delay_ms * 2^(n-1), retry_delay_ms_max)..."""
    retry_jitter_percent: int = 20
    """...and up to this much more, so that what failed together does not come back together."""
    max_retries: int | None = 10
    """Failures beyond this are final; None tries for ever."""
    permanent: tuple[type[BaseException], ...] = ()
    """Errors that no retry mends. `failures.PermanentError` is always one."""
    on_failure: OnFailure = "leave"
    """What becomes of a record that is given up. All three free its key.
    leave: it stays unfinished, and comes again after a restart; counts to errors_max.
    park:  the same, and does not count.
    dlq:   it is written to the dead letter topic, and is finished then."""
    errors_max: int = 10
    """So many records left in a row, with no success between, halt the pool."""
    given_up_max: int = 1_000
    """So many unfinished records given up in one partition halt the pool: each is a hole in the
    map of what is finished, for ever."""
    commit_ms: int = 5_000
    commit_count: int = 1_000
    """Commit after this time or so many finished records, whichever is first."""
    commit_retry_ms: int = 1_000
    """How long after a failed commit, or a failed dead letter write, the next is tried."""
    map_units_max: int = 4_095
    """UTF-16 units of metadata the broker takes (offset.metadata.max.bytes less one); 0: no map."""
    map_text: MapText = "base32768"
    """base64 is for brokers that count bytes instead; it holds less than half."""
    map_pressure_percent: int = 75
    """A partition whose map fills so much of the room is paused until the gap closes."""

    def __post_init__(self) -> None:
        for field, choices in (
            ("order", get_args(Order)),
            ("on_failure", get_args(OnFailure)),
            ("map_text", get_args(MapText)),
        ):
            if getattr(self, field) not in choices:
                raise BadConfig(field, f"must be one of {', '.join(choices)}")
        for each in fields(self):
            value, least = getattr(self, each.name), _LEAST.get(each.name, 1)
            if each.type is int and not (type(value) is int and value >= least):
                raise BadConfig(each.name, f"must be a whole number of at least {least}")
        if self.max_retries is not None and self.max_retries < 0:
            raise BadConfig("max_retries", "must be at least 0, or None to try for ever")


_LEAST = {"retry_jitter_percent": 0, "map_units_max": 0}
