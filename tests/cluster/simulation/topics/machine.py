"""A simulated machine: its disk, its clock, and what happens to both.

The disk has a folder for each log and one for what the node keeps of its own. A process that is
killed leaves the page cache; a machine that loses its power loses what was not synced, torn and in
parts, as `SimulatedFolder` has it.
"""

from random import Random

from tests.cluster.simulation.topics.timeline import Timeline
from tests.kit.disk import SimulatedFolder
from tests.storage.stores import files_of
from waterclock.log.segment import HEADER_BYTES
from waterclock.model.ids import Millis

BEGUN_MS = 1_700_000_000_000
"""What a clock that is right shows when a run begins."""


class Machine:
    """One machine; processes come and go on it."""

    def __init__(self, name: str, timeline: Timeline, rng: Random, disk_id: str) -> None:
        self.name = name
        self.rng = rng
        self.clock_error_ms = 0
        """How far the wall clock is before the right one."""
        self.flush_ms = (0, 3)
        self._timeline = timeline
        self.wipe(disk_id)

    def wipe(self, disk_id: str) -> None:
        """Put another disk in, with nothing on it."""
        self.disk_id = disk_id
        self.own = SimulatedFolder()
        self.folders: dict[bytes, SimulatedFolder] = {}

    def remove_log(self, log_id: bytes) -> None:
        """Remove the folder of a log, and nothing else; no process may have it open."""
        del self.folders[log_id]

    def wall_ms(self) -> Millis:
        """Return what the wall clock shows."""
        return Millis(BEGUN_MS + self._timeline.now_ms + self.clock_error_ms)

    def folder(self, log_id: bytes) -> SimulatedFolder:
        """Return a handle on the folder of a log, made if it is not there; nobody else has one."""
        found = self.folders.get(log_id)
        if found is None:
            found = SimulatedFolder()
        else:
            found.close()
            found = found.reopen()
        self.folders[log_id] = found
        return found

    def killed(self) -> None:
        """End whatever process had the disk; the page cache stays."""
        for log_id, folder in self.folders.items():
            folder.close()
            self.folders[log_id] = folder.reopen()
        self.own.close()
        self.own = self.own.reopen()

    def power_cut(self) -> None:
        """Lose what was not synced."""
        for log_id, folder in self.folders.items():
            self.folders[log_id] = folder.crash(self.rng.randrange)
        self.own = self.own.crash(self.rng.randrange)

    def fill(self) -> None:
        """Leave hardly any room in any folder."""
        for folder in self.folders.values():
            used = sum(map(len, files_of(folder).values()))
            folder.capacity_bytes = used + self.rng.randrange(600)

    def rot(self) -> bool:
        """Flip a bit of a sealed segment, if there is one: nothing takes that for a torn write."""
        for folder in self.folders.values():
            other = folder.reopen()
            for name in [name for name in other.names() if name.endswith(".seg")][:-1]:
                size = other.open(name).size()
                folder.flip(name, self.rng.randrange(HEADER_BYTES, size), self.rng.randrange(8))
                return True
        return False

    def make_room(self) -> None:
        for folder in self.folders.values():
            folder.capacity_bytes = None
