"""Plans and loads for tests."""

from random import Random

from waterclock.dispatch.core.batches import Load
from waterclock.dispatch.core.identity import uuids_from
from waterclock.dispatch.core.plan import Plan, PlanConfig
from waterclock.dispatch.core.stored_batches import StoredBatch

DEADLINE_MS = 2_000


def load(first: int, count: int, *, is_stored_batch: bool = True, size: int = 2) -> Load:
    """Return messages first, first + 1, ... of a stored batch or of a stream."""
    stored_batch = StoredBatch(b"p" * 10, first, 5, [b"x" * size] * count)
    if is_stored_batch:
        return Load.of_stored_batch(stored_batch)
    entries = [b"%d-0" % number for number in range(first, first + count)]
    return Load(stored_batch.uuids(), [5] * count, stored_batch.bodies, entries=entries)


def uuids(first: int, count: int) -> list[bytes]:
    """Return the uuids that `load` gives them."""
    return uuids_from(b"p" * 10, first, count)


def new_plan(workers: int = 2, credit: int = 100, **settings: int) -> Plan:
    """Return a plan with workers 0, 1, ..."""
    plan = Plan(PlanConfig(deadline_ms=DEADLINE_MS, **settings), Random(1))
    for worker in range(workers):
        plan.joined(worker, name=f"w{worker}", credit=credit)
    return plan
