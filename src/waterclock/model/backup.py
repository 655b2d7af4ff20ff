"""A cut: all logs of a node as they stand at one moment, segment by segment, without their bytes.

A node tells it, a backup is made by it, and the manifest of a backup repeats it. What identifies a
segment is more than its place: the log's id, the generation, the size, and the checksum that the
last frame's header ends with. Bytes below the end of a segment never change under one generation,
so two segments that agree in all of these are the same.
"""

import re
from collections.abc import Iterator

import msgspec

from waterclock.model.errors import BadInput

META = "meta"
STREAMS = "streams"
_PATH = re.compile(rf"{META}|{STREAMS}|topics/[A-Za-z0-9_][A-Za-z0-9._-]*/[0-9]{{1,4}}/log")


class SegmentCut(msgspec.Struct, frozen=True):
    """A segment up to the end of a frame."""

    base_offset: int
    generation: int
    end_offset: int
    size_bytes: int
    last_header_crc: int
    """Of the last frame; 0 without one."""


class LogCut(msgspec.Struct, frozen=True):
    """A log up to the end of a frame."""

    path: str
    """In the folder of a node's data, as `meta` or `topics/orders-5f3a9c/0/log`."""
    log_id: bytes
    segments: tuple[SegmentCut, ...]

    @property
    def end_offset(self) -> int:
        """One past the last offset."""
        return self.segments[-1].end_offset


class Cut(msgspec.Struct, frozen=True):
    """A node at one moment."""

    node: str
    version: str
    cut_ms: int
    streams_elsewhere: str
    """The kind of store that has the stored streams, if it is not among the logs; else empty."""
    logs: tuple[LogCut, ...]

    def segments(self) -> Iterator[tuple[LogCut, SegmentCut]]:
        """Yield all segments, in the order in which they are counted."""
        for log in self.logs:
            for segment in log.segments:
                yield log, segment

    def identity(self) -> bytes:
        """Return what no other node has: the id of the log with its own records."""
        return next(log.log_id for log in self.logs if log.path == META)

    def check(self) -> None:
        """Raise BadInput unless this can be a cut; files are written where its paths say."""
        paths = [log.path for log in self.logs]
        if paths.count(META) != 1 or len(set(paths)) < len(paths):
            raise BadInput("the cut does not name each log once, or not the node's own records")
        for log in self.logs:
            check_log_path(log.path)
            if len(log.log_id) != 16 or not log.segments:
                raise BadInput(f"the cut says nothing of what {log.path} holds")


def check_log_path(path: str) -> None:
    """Raise BadInput unless this is where a node has a log, in the folder of its data."""
    if not _PATH.fullmatch(path):
        raise BadInput(f"{path!r} is not where a node has a log")
