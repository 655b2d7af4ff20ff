"""The partition log keeps its guarantees over hundreds of random histories on a failing
disk.

And the histories can tell: each planted bug below is found. `make sim SEED=… N=…` runs more.
"""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kit.async_fsyncs import SimulatedAsked
from tests.kit.examples import examples
from tests.kit.histories import LogHistories
from waterclock.log import frame, recovery
from waterclock.log.id_index.index import IdIndex
from waterclock.storage import opening, sidecar_files
from waterclock.storage import rewrite as rewriting
from waterclock.storage.flush import FlushPlan
from waterclock.storage.fsyncs import Sync
from waterclock.storage.partition_store import PartitionStore

HISTORIES = int(os.environ.get("WATERCLOCK_HISTORIES") or examples(600))
SHARDS = 4
SEED = int(os.environ["WATERCLOCK_SEED"]) if "WATERCLOCK_SEED" in os.environ else None
if SEED is None and os.environ.get("CI"):
    SEED = 0
STEPS = 30
HUNTS, HUNT_EXAMPLES = 75, 40


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_history_breaks_a_guarantee(shard: int) -> None:
    machine = type(f"LogHistories{shard}", (LogHistories,), {})
    if SEED is not None:
        # A seed of its own: with Hypothesis' one seed for all, every shard would repeat the first.
        machine = seed(SEED * SHARDS + shard)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=-(-HISTORIES // SHARDS),
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )


Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FlushPlan, "acknowledged_end", property(lambda plan: plan.appended_end))


def leave_a_header_byte_uncovered(patch: pytest.MonkeyPatch) -> None:
    def blind(data: bytes) -> int:
        data = bytes(data)
        is_header = len(data) == frame.HEADER_BYTES - 4
        return crc32c(data[:33] + b"\0" + data[34:]) if is_header else crc32c(data)

    patch.setattr(frame, "crc32c", blind)


def truncate_below_the_recovery_point(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery.Scan, "rotten", lambda scan, proven: [])
    patch.setattr(recovery.Scan, "torn_at", lambda scan, proven: next(iter(scan.damage), None))


def believe_a_stale_sidecar(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sidecar_files, "_is_of", lambda coverage, header, segment: True)
    real = sidecar_files._last_frame

    def believe(segment, coverage, index):
        position = index.position_of_offset(coverage.end_offset)
        return real(segment, coverage, index) or (
            frame.decode_header(segment.view(0, segment.size()), position)
            if position is not None and position + frame.HEADER_BYTES <= segment.size()
            else None
        )

    patch.setattr(sidecar_files, "_last_frame", believe)


def forget_ids_on_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdIndex, "resume", lambda index, entries: None)


def go_on_after_a_failed_fsync(patch: pytest.MonkeyPatch) -> None:
    store = PartitionStore
    real = store.finish_sync
    patch.setattr(store, "finish_sync", lambda self, sync, error=None: real(self, sync))


def trust_pages_of_a_failed_fsync(patch: pytest.MonkeyPatch) -> None:
    def settle(self, segment, proven):
        segment.file.sync()

    patch.setattr(opening._Opening, "_settle", settle)


def use_a_log_that_was_opened_without_its_fsync(patch: pytest.MonkeyPatch) -> None:
    real = opening.open_unsettled

    def unsettled(folder, **rest):
        store, sync = real(folder, **rest)
        patch.setattr(sync, "run", lambda: None)
        return store, sync

    patch.setattr("tests.kit.checked_store.open_unsettled", unsettled)


def take_for_done_what_the_kernel_was_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedAsked, "result", lambda asked: None)


def ask_the_disk_again_after_the_kernel_has_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sync, "begin", lambda sync, kernel: kernel.begin(sync.file))


def rewrite_before_flushing(patch: pytest.MonkeyPatch) -> None:
    real = rewriting.rewrites

    def careless(store, wanted, **rest):
        patch.setattr(PartitionStore, "sync", lambda store: None)
        return real(store, wanted, **rest)

    patch.setattr("tests.kit.checked_store.rewrites", careless)


def drop_ids_with_their_messages(patch: pytest.MonkeyPatch) -> None:
    job = rewriting.RewriteJob
    real = job._survivors
    patch.setattr(job, "_survivors", lambda self: replace(real(self), seen_from_ms=1 << 60))


def sync_a_moving_target(patch: pytest.MonkeyPatch) -> None:
    real = FlushPlan.finish
    patch.setattr(FlushPlan, "finish", lambda plan, end: real(plan, plan.appended_end))


PLANTS: list[tuple[Plant, int]] = [
    (acknowledge_before_fsync, 2),
    (leave_a_header_byte_uncovered, 23),
    (truncate_below_the_recovery_point, 3),
    (believe_a_stale_sidecar, 1),
    (forget_ids_on_restart, 3),
    (go_on_after_a_failed_fsync, 4),
    (trust_pages_of_a_failed_fsync, 4),
    (use_a_log_that_was_opened_without_its_fsync, 2),
    (take_for_done_what_the_kernel_was_asked_for, 0),
    (ask_the_disk_again_after_the_kernel_has_heard, 0),
    (rewrite_before_flushing, 2),
    (drop_ids_with_their_messages, 2),
    (sync_a_moving_target, 10),
]
"""Each with the seed of a hunt that found it once."""


def hunt(first: int) -> None:
    """Hunt shortly and often, beginning with a seed that found the bug once."""
    for each in range(first, first + HUNTS):
        run_state_machine_as_test(
            seed(each)(type("PlantedHistories", (LogHistories,), {})),
            settings=settings(
                max_examples=HUNT_EXAMPLES,
                stateful_step_count=STEPS,
                phases=[Phase.generate],
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.parametrize(("plant", "first"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_the_histories_find_a_planted_bug(
    plant: Plant, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    with pytest.raises(Exception) as found:  # noqa: PT011 - any way of noticing will do
        hunt(first)

    assert not isinstance(found.value, TypeError | AttributeError | NameError), (
        "the plant is broken"
    )
