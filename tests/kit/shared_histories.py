"""Random histories of several partition logs on one file system, synced together or one by one.

What one store does on a disk that fails is told by `histories`. Here the stores share their fsyncs
as those of a node do, on a file system that tells of each failed write once, to whoever asks first.
It must hold that no store takes another's fsync, or another's luck, for its own.
"""

import sys
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.kit.checked_store import CheckedStore
from tests.kit.disk import SimulatedFile, SimulatedFileSystem
from waterclock.model.errors import StorageFailed
from waterclock.model.message import Message
from waterclock.model.sections import LogConfig
from waterclock.storage.fsyncs import FsyncThreads, Sync

STORES = 3
LOG = LogConfig(
    segment_bytes=4096, preallocate_bytes=1024, index_every_bytes=600, checkpoint_every_bytes=1500
)

which = st.integers(0, STORES - 1)
some = st.sets(which, min_size=1)
seeds = st.integers(0, 1 << 32)
sizes = st.sampled_from([1, 40, 600])


class SharedHistories(RuleBasedStateMachine):
    """Several partitions, one owner, one file system."""

    stores: list[CheckedStore]

    @initialize()
    def begin(self) -> None:
        self.stores = [CheckedStore(LOG) for _ in range(STORES)]
        self.number = 0
        self._boot()

    def _boot(self) -> None:
        """Begin a process: it asks the file system, until that fails."""
        self.file_system = SimulatedFileSystem()
        self.fsyncs = FsyncThreads(1, self.file_system)

    @rule(at=which, size=sizes, count=st.integers(1, 4))
    def append(self, at: int, size: int, count: int) -> None:
        self.number += 1
        value = b"%d" % self.number
        try:
            self.stores[at].append([Message(value * size, message_id=value)] * count)
        except StorageFailed:
            # There was no room in the segment, and it could not be sealed.
            assert self.stores[at].store.end == self.stores[at].model.end
            self._kill()

    @rule(
        chosen=some,
        meanwhile=st.none() | st.tuples(which, which),
        rolled=st.none() | which,
        seed=st.none() | seeds,
    )
    def fsync(
        self,
        chosen: set[int],
        meanwhile: tuple[int, int] | None,
        rolled: int | None,
        seed: int | None,
    ) -> None:
        """Sync some together, perhaps with an append while that runs, or a roll before it."""
        begun: dict[int, Sync] = {}
        for at in sorted(chosen):
            on = self.stores[at]
            sync = on.store.begin_sync(on.clock.now_ms())
            if sync is not None:
                begun[at] = sync
        if rolled is not None and not self._has_error(rolled):
            self.stores[rolled].roll()
        if meanwhile is not None:
            during, at = meanwhile
            self.stores[during].folder.on_sync = lambda _: self._append_once(during, at)
        try:
            errors = self.fsyncs.run(list(begun.values()))
        finally:
            for on in self.stores:
                on.folder.on_sync = None
        has_failed = False
        for (at, sync), error in zip(begun.items(), errors, strict=True):
            has_failed |= self._finish(self.stores[at], sync, error)
        if has_failed:
            self._kill()
        elif seed is not None:
            self.cut_the_power(seed)

    def _append_once(self, during: int, at: int) -> None:
        self.stores[during].folder.on_sync = None
        if not self._has_error(at):
            self.append(at, 1, 1)

    def _finish(self, on: CheckedStore, sync: Sync, error: Exception | None) -> bool:
        if error is None:
            on.store.finish_sync(sync)
            on.acknowledge()
            return False
        assert isinstance(error, StorageFailed)
        on.store.finish_sync(sync, error)
        return True

    @rule(at=which)
    def roll(self, at: int) -> None:
        if not self._has_error(at):
            self.stores[at].roll()

    @rule(at=which)
    def run_jobs(self, at: int) -> None:
        self.stores[at].store.run_jobs()

    @rule(at=which)
    def fail_write_back(self, at: int) -> None:
        """The kernel writes pages back by itself, and cannot."""
        self.file_system.fail_write_back(self._active_file(at))

    @rule(at=which, seed=seeds)
    def hear_of_an_error_that_was_meant_for_another(self, at: int, seed: int) -> None:
        """Write-back of one fails, the others are synced, and then it is synced with them."""
        everyone = set(range(STORES))
        for each in everyone:
            self.append(each, 1, 1)
        self.fail_write_back(at)
        self.fsync(everyone - {at}, None, None, None)
        for other in everyone - {at}:
            self.append(other, 1, 1)
        self.fsync(everyone, None, None, seed)

    def _has_error(self, at: int) -> bool:
        """Whether its next fsync fails, and it with it."""
        return self._active_file(at)._platter.has_error

    def _active_file(self, at: int) -> SimulatedFile:
        file = self.stores[at].store.segments[-1].file
        assert isinstance(file, SimulatedFile)
        return file

    # A node ends as a whole.

    @rule(seed=seeds)
    def cut_the_power(self, seed: int) -> None:
        random = Random(seed)
        for on in self.stores:
            on.cut_the_power(random.randrange(1 << 32))
        self._boot()

    @rule()
    def kill_the_process(self) -> None:
        self._kill()

    def _kill(self) -> None:
        for at, on in enumerate(self.stores):
            # The error goes with the process that could have heard of it; the pages stay dropped.
            self._active_file(at)._platter.has_error = False
            on.kill_the_process()
        self._boot()

    def teardown(self) -> None:
        if hasattr(self, "stores") and sys.exc_info()[0] is None:
            self._kill()
