"""Logs whose fsyncs are shared keep their guarantees over random histories on a failing disk.

And the histories can tell: each planted bug below is found. `make sim` runs more.
"""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kit.shared_histories import SharedHistories
from tests.storage.test_histories import HISTORIES, SEED
from waterclock.model.errors import StorageFailed
from waterclock.storage.folders.folder import File
from waterclock.storage.fsyncs import FileSystem, FsyncThreads, Sync

STEPS = 30
HUNTS, HUNT_EXAMPLES = 25, 40


def test_no_history_breaks_a_guarantee() -> None:
    machine = SharedHistories if SEED is None else seed(SEED)(SharedHistories)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=-(-HISTORIES // 20),
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )


Plant = Callable[[pytest.MonkeyPatch], None]
real_together = Sync.run_together
real_run = FsyncThreads.run


def sync_the_first_file_alone(patch: pytest.MonkeyPatch) -> None:
    class Lazy:
        def __init__(self, below: FileSystem) -> None:
            self._below = below

        def sync(self, files: Sequence[object]) -> list[StorageFailed | None]:
            self._below.sync(files[:1])  # type: ignore[arg-type]
            return [None] * len(files)

        def covers(self, file: File) -> bool:
            return self._below.covers(file)

        def close(self) -> None:
            self._below.close()

    patch.setattr(Sync, "run_together", lambda syncs, fs: real_together(syncs, Lazy(fs)))


def take_a_failed_sync_for_done(patch: pytest.MonkeyPatch) -> None:
    def careless(syncs: Sequence[Sync], file_system: FileSystem) -> None:
        try:
            real_together(syncs, file_system)
        except StorageFailed:
            for sync in syncs:
                sync._is_over = True

    patch.setattr(Sync, "run_together", careless)


def ask_a_file_system_again_that_has_failed(patch: pytest.MonkeyPatch) -> None:
    def run(self: FsyncThreads, syncs: list[Sync]) -> list[Exception | None]:
        file_system = self._file_system
        errors = real_run(self, syncs)
        self._file_system = file_system
        return errors

    patch.setattr(FsyncThreads, "run", run)


def finish_all_if_the_last_went_well(patch: pytest.MonkeyPatch) -> None:
    def run(self: FsyncThreads, syncs: list[Sync]) -> list[Exception | None]:
        return [real_run(self, syncs)[-1]] * len(syncs) if syncs else []

    patch.setattr(FsyncThreads, "run", run)


@pytest.mark.parametrize(
    "plant",
    [
        sync_the_first_file_alone,
        take_a_failed_sync_for_done,
        ask_a_file_system_again_that_has_failed,
        finish_all_if_the_last_went_well,
    ],
)
def test_planted_bugs_are_found(monkeypatch, plant: Plant):
    plant(monkeypatch)

    assert any(is_found(number) for number in range(HUNTS)), "no history found it"


def is_found(number: int) -> bool:
    machine = seed(number)(type(f"Hunt{number}", (SharedHistories,), {}))
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=HUNT_EXAMPLES,
                stateful_step_count=STEPS,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    except (AssertionError, StorageFailed, ExceptionGroup):
        return True
    return False
