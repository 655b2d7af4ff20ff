"""The cut of a node that does not run, from the folder of its data.

What lies there is what its last end left, in good order or not: the logs are looked at as a start
would (torn ends are left out), and not a byte is changed. The folder of the node's own records is
locked, as a running node locks it, so that none can start before the cut is closed.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

import waterclock
from waterclock.log.frame import Frame
from waterclock.log.segment import SUFFIX, segment_name
from waterclock.model.backup import META, STREAMS, Cut, LogCut
from waterclock.model.errors import BadInput, PartitionFaulty
from waterclock.node.topics import RECORD, TopicRecord
from waterclock.runtime.clock import SystemClock
from waterclock.storage.backup.cut import cut_log
from waterclock.storage.backup.reading import read_at
from waterclock.storage.folders.os_folder import OsFile
from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
from waterclock.storage.local_log import stored_messages
from waterclock.storage.survey import Survey, look


class StoppedCut:
    """A cut, and the bytes behind it."""

    def __init__(self, data: Path) -> None:
        """Raises FolderInUse if the node runs, PartitionFaulty if something is damaged."""
        if not (data / META).is_dir():
            raise BadInput(f"{data} is not the data of a node: it has no folder {META!r}")
        self._data = data
        self._held = ExitStack()
        self._reading: tuple[int, OsFile, ExitStack] | None = None
        try:
            meta = self._held.enter_context(ReadOnlyFolder(data / META))
            meta.lock()
            logs = [self._look(META)]
            logs += [self._look(path) for path in _paths_of(data)]
        except BaseException:
            self._held.close()
            raise
        self.cut = Cut(data.name, waterclock.__version__, SystemClock().now_ms(), "", tuple(logs))
        self._segments = list(self.cut.segments())

    def __repr__(self) -> str:
        return f"<StoppedCut of {self._data}, {len(self._segments)} segments>"

    def _look(self, path: str) -> LogCut:
        with ReadOnlyFolder(self._data / path) as folder:
            survey = _whole(path, folder)
            return cut_log(path, survey.segments, survey.end)

    def read(self, number: int, position: int, size: int) -> bytes:
        """Return bytes of a segment, as they are counted in the cut."""
        if self._reading is None or self._reading[0] != number:
            self._let_go()
            log, segment = self._segments[number]
            held = ExitStack()
            folder = held.enter_context(ReadOnlyFolder(self._data / log.path))
            self._reading = number, folder.open(segment_name(segment.base_offset)), held
        return read_at(self._reading[1].descriptor.number(), position, size)

    def _let_go(self) -> None:
        if self._reading is not None:
            self._reading[2].close()
            self._reading = None

    def close(self) -> None:
        """Let go of the files, and of the lock."""
        self._let_go()
        self._held.close()


def _paths_of(data: Path) -> Iterator[str]:
    """Yield where the logs of topics and streams are, by what the node's records say.

    Not by what lies there: a topic that was being made, or deleted, when the node ended is none.
    """
    records: dict[bytes, bytes | None] = {}
    with ReadOnlyFolder(data / META) as folder:
        survey = _whole(META, folder)
        for found in survey.walk(survey.start):
            assert isinstance(found, Frame)
            if found.header.is_deliverable:
                for _, message in stored_messages(found, found.header.base_offset):
                    assert message.key is not None
                    records[message.key] = message.value
    for name, value in sorted(records.items()):
        if value is not None and name.startswith(RECORD.encode()):
            topic = msgspec.json.decode(value, type=TopicRecord)
            for partition in range(topic.settings.partitions):
                yield f"topics/{topic.folder}/{partition}/log"
    if any((data / STREAMS).glob(f"*{SUFFIX}")):
        yield STREAMS


def _whole(path: str, folder: ReadOnlyFolder) -> Survey:
    survey = look(folder)
    if survey.damage:
        raise PartitionFaulty(
            f"{path} is damaged, {survey.damage[0][1]}: a backup would replace what a backup before"
            " it has of this. Restore that, or accept the loss with `waterclock log repair`"
        )
    return survey
