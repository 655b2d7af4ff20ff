"""A simulated replica copies what its leader has rewritten: a piece at a time, over a link."""

from typing import TYPE_CHECKING

from crc32c import crc32c

from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.model.errors import BadInput, StorageFull
from waterclock.storage.installation.intent import Intent
from waterclock.storage.installation.log_copy import CopyWriter, LogCopy

if TYPE_CHECKING:
    from tests.cluster.simulation.topics.hosted import Hosted

STEP_MS = (1, 60)
"""What a segment takes."""


class Installing:
    """One copy under way; it ends unheard when its replica begins another."""

    def __init__(self, hosted: "Hosted", source: ReplicaId) -> None:
        self.intent: Intent | None = None
        """What is there when all of it is."""
        self._hosted = hosted
        self._source = source
        self._process = hosted.process
        self._writer: CopyWriter | None = None
        self._later(self._begin)

    def _later(self, step: object) -> None:
        self._process.soon(self._process.machine.rng.randint(*STEP_MS), lambda: self._do(step))

    def _do(self, step: object) -> None:
        """Go on, if this is still what the replica does, over a link that still stands."""
        hosted = self._hosted
        if hosted.installing is not self or self._source not in self._process.linked:
            return
        assert callable(step)
        try:
            step()
        # As a node does: what its leader has may have rotted there.
        except (BadInput, StorageFull):
            self._fail()

    def _fail(self) -> None:
        self._hosted.installing = None
        self._hosted.tell(self._hosted.core.copy_failed(self._source, self._hosted.now_ms))

    def _begin(self) -> None:
        world, log = self._process.world, self._hosted.log
        other = world.processes[self._source.rpartition(":")[0]]
        theirs = None if other is None else other.replicas.get(self._hosted.log_id)
        if other is None or not other.is_running or theirs is None or theirs.core.role != "leader":
            self._fail()
            return
        copy = theirs.log.copy()
        if copy.end <= log.end and not log.is_faulty:
            self._fail()
            return
        folder, now_ms = log.store.folder, self._process.machine.wall_ms()
        self._writer = CopyWriter(folder, self._hosted.log_id, copy.head, now_ms=now_ms)
        self._later(lambda: self._go_on(copy, 0))

    def _go_on(self, copy: LogCopy, number: int) -> None:
        assert self._writer is not None
        if number < len(copy.segments):
            _, data = copy.segments[number]
            self._writer.write(data)
            self._writer.end_segment(crc32c(data))
            self._later(lambda: self._go_on(copy, number + 1))
            return
        self.intent = self._writer.finish()
        hosted = self._hosted
        hosted.tell(hosted.core.copied(self._source, hosted.now_ms))
