"""The cut of a running node: all of its logs at one moment, kept readable until it is closed.

The cut is taken in one step of the loop, between two events: it is what a crash at that moment
would leave, and a node recovers from any crash. The partitions end where they are acknowledged; the
node's own records end where they are written, because what is known in memory (which topics there
are, and so which folders) goes by those. Records speak only of messages that were flushed before,
so they are never ahead of the partitions. Cut at a later moment than the partitions they would be:
they could say of a dead letter, or of an occurrence, that it was written, and it would be nowhere.

Each file is held by its descriptor. Whatever the node does meanwhile (append, rewrite a segment and
swap it in, delete a topic), the bytes below the cut stay as they were.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import waterclock
from waterclock.model.backup import META, STREAMS, Cut, LogCut
from waterclock.model.errors import PartitionFaulty, StoreUnavailable
from waterclock.node.node import Node
from waterclock.storage.backup.cut import cut_log
from waterclock.storage.backup.reading import read_at
from waterclock.storage.folders.os_folder import OsFile
from waterclock.storage.partition_store import PartitionStore
from waterclock.stores.log.store import LogStore


async def take_cut(node: Node) -> "LiveCut":
    """Cut a node now. You must close it; files that the node has replaced take space until then."""
    # Progress is kept in memory for up to a second: acks that were answered belong into the cut.
    await node.groups.save_all()
    return LiveCut(node)


class LiveCut:
    """A cut, and the bytes behind it, which may be read on any thread."""

    def __init__(self, node: Node) -> None:
        self._pins = ExitStack()
        self._numbers: list[int] = []
        try:
            logs = [self._pinned(*each) for each in _logs_of(node)]
        except BaseException:
            self._pins.close()
            raise
        url = node.config.streams.store
        self.cut = Cut(
            node.name,
            waterclock.__version__,
            node.clock.now_ms(),
            "" if url == "log:" else url.partition(":")[0],
            tuple(logs),
        )

    def __repr__(self) -> str:
        return f"<LiveCut of {self.cut.node}, {len(self._numbers)} segments>"

    def _pinned(self, path: str, store: PartitionStore, end: int) -> LogCut:
        if store.faults:
            raise PartitionFaulty(
                f"{path} is damaged, {store.faults[0]}: a backup would replace what a backup "
                "before it has of this. Stop the node and restore that, or accept the loss with "
                "`waterclock log repair`"
            )
        for segment in store.segments:
            assert isinstance(segment.file, OsFile)
            self._numbers.append(self._pins.enter_context(segment.file.descriptor))
        return cut_log(path, store.segments, end)

    def read(self, number: int, position: int, size: int) -> bytes:
        """Return bytes of a segment, as they are counted in the cut."""
        return read_at(self._numbers[number], position, size)

    def close(self) -> None:
        """Let go of the files."""
        self._pins.close()


def _logs_of(node: Node) -> Iterator[tuple[str, PartitionStore, int]]:
    """Yield every log with its path and where it is cut. Nothing may happen in between."""
    yield META, node.metadata.store, node.metadata.store.end
    for topic in node.topics.all():
        for host in topic.partitions:
            if not host.is_open:
                raise PartitionFaulty(
                    f"{topic.name}/{host.partition} cannot be backed up: {host.problem}"
                )
            path = f"topics/{topic.folder}/{host.partition}/log"
            yield path, host.store, host.store.acknowledged_end
    streams = node.persister.store_in_use
    if isinstance(streams, LogStore) and node.config.streams.store == "log:":
        if not streams.is_open:
            problem = node.persister.problem or "their store is closed"
            raise StoreUnavailable(f"stored streams cannot be backed up: {problem}")
        yield STREAMS, streams.log, streams.log.acknowledged_end
