"""Logs of partitions: how they are kept, what they remember, when old messages go."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from waterclock.model.settings import (
    Choice,
    Maybe,
    Section,
    Toggle,
    count,
    duration,
    size,
)
from waterclock.model.units import (
    DAY_MS,
    GIB,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    TIB,
)

Fsync = Literal["group", "always", "interval"]
Compression = Literal["none", "lz4", "zstd"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(Section):
    """How a partition keeps its log on disk; and what the node tells of itself on stderr, which is
    called a log as well."""

    section: ClassVar[str] = "log"

    level: Annotated[LogLevel, Choice(get_args(LogLevel))] = "warning"
    """What the node tells on stderr: `info` adds topics, groups and members that come and go, and
    what starts found to mend. `--verbose` is `info`."""

    format: Annotated[LogFormat, Choice(get_args(LogFormat))] = "text"
    """`json` is an object on each line, with time, level, event, fields and the id of the request:
    for machines. Credentials, tokens and passwords in URLs are in neither."""

    segment_bytes: Annotated[int, size(4 * KIB, 1 * GIB)] = 512 * MIB
    """A segment is closed at this size. Larger means fewer files; retention and compaction work
    on whole closed segments, so it also frees space later and in bigger steps."""

    segment_age_ms: Annotated[int, duration(1 * SECOND_MS, 3_650 * DAY_MS)] = 7 * DAY_MS
    """A segment is closed at this age, however small, so that quiet topics age out too. Shorter
    frees their space sooner and leaves more small files."""

    preallocate_bytes: Annotated[int, size(0, 1 * GIB)] = 32 * MIB
    """Disk reserved ahead of the log's end, at most: 64 KiB with the first message of a segment,
    then as much again as it holds. More finds a full disk earlier and makes fsync cheaper. 0
    reserves nothing."""

    index_every_bytes: Annotated[int, size(1, 64 * MIB)] = 32 * KIB
    """Log between two entries of the sparse index. Less finds an offset with less scanning and
    needs a bigger index."""

    checkpoint_every_bytes: Annotated[int, size(1, 16 * GIB)] = 64 * MIB
    """How much log a crash may make us read again. Less restarts sooner and writes checkpoints
    more often."""

    fsync: Annotated[Fsync, Choice(get_args(Fsync))] = "group"
    """`group`: every publish waits for an fsync, which all that wait share. `always`: one for each
    frame, far slower and no safer. `interval`: publishes do not wait, and a power cut loses up to
    one interval of acknowledged messages."""

    fsync_interval_ms: Annotated[int, duration(1, 1 * MINUTE_MS)] = 100
    """Used by `interval` only. Longer costs less disk time and may lose more."""

    compression: Annotated[Compression, Choice(get_args(Compression))] = "none"
    """For batches the node itself encodes; those of producers stay as they came. `lz4` is cheap,
    `zstd` smaller, both spend the node's one core to save disk and network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupConfig(Section):
    """How long and how many message ids are remembered."""

    section: ClassVar[str] = "dedup"

    enabled: Annotated[bool, Toggle()] = True
    """Whether an id published again is recognised. Off publishes faster, and a producer that
    retries may then store a message twice."""

    window_ms: Annotated[int, duration(1 * SECOND_MS, 3_650 * DAY_MS)] = 7 * DAY_MS
    """How long a producer may go on retrying safely. Longer needs more index on disk and memory."""

    ids_max: Annotated[int, count(1, 1 << 32)] = 1 << 26
    """Most ids remembered per partition; past it the oldest are forgotten before the window ends.
    Each takes 8 bytes of index, on disk and in memory. Those published with `allow_duplicate` count
    for themselves: as many again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig(Section):
    """When old messages go. It frees whole closed segments and does not shorten `dedup.window`:
    an id may be remembered after its message is gone."""

    section: ClassVar[str] = "retention"

    age_ms: Annotated[int | None, Maybe(duration(1 * SECOND_MS, 36_500 * DAY_MS))] = None
    """Messages older than this may go. None keeps them for ever, until the disk is full."""

    bytes: Annotated[int | None, Maybe(size(4 * KIB, 1_024 * TIB))] = None
    """The oldest messages of a partition go once its log is larger than this. None sets no bound;
    the disk does."""

    wait_for_groups: Annotated[bool, Toggle()] = False
    """Whether what some group has yet to read is kept for longer. On, a group that nobody uses any
    more fills the disk until it expires. Off, a group that is too slow misses messages, and is told
    how many."""
