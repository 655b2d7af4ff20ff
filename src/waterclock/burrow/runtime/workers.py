"""The workers of a parallel consumer, and how what they did reaches the driver.

Results are collected, and reported in bulk: when the queue is empty, when another record waits for
one of them, or after `REPORT_S`. While the queue has something nobody is idle, so it is no loss to
wait, and a report for each result would cost more than the result.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from waterclock.burrow.core.failures import Failed
from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.source import Output, outputs_of
from waterclock.runtime.worker_pool import CoroutinePool, ThreadPool

REPORT_S = 0.001

Item = Record | list[Record]
"""What one call is handed: a record, or a list of them if the function takes lists."""


@dataclass(slots=True)
class Results:
    """What became of records since it was last reported."""

    done: list[Record] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """How long each of the calls took that did them."""
    outputs: list[Sequence[Output]] = field(default_factory=list)
    """What each of the calls returned, if anybody wants to know."""
    failed: list[tuple[list[Record], BaseException]] = field(default_factory=list)
    check: Callable[[Sequence[Output]], None] = field(default=lambda outputs: None)
    """Raises if something cannot be produced."""

    def settle(self, item: Item, result: object, seconds: float, *, wants_outputs: bool) -> None:
        """Note how a call ended: with what it returned, or with what it raised."""
        records = item if isinstance(item, list) else [item]
        if isinstance(result, Failed):
            named = {id(each) for each in result.records}
            failed = [each for each in records if id(each) in named]
            if len(failed) < len(named):  # it names others: who knows which of these are done
                failed = records
            self.failed.append((failed, result.error))
            records = [each for each in records if each not in failed]
            result = result.outputs
        elif isinstance(result, BaseException):
            self.failed.append((records, result))
            return
        if wants_outputs and records:
            try:
                outputs = [] if result is None else outputs_of(result)
                self.check(outputs)
            except Exception as error:  # what cannot be produced is as good as a call that failed
                self.failed.append((records, error))
                return
            self.outputs += [outputs, *[()] * (len(records) - 1)]
        self.done += records
        self.seconds += [seconds] * len(records)


def parted(
    items: Iterable[Item], is_wanted: Callable[[Record], bool]
) -> tuple[list[Record], list[Item]]:
    """Return the records that are wanted, and the items that are left without them."""
    taken: list[Record] = []
    kept: list[Item] = []
    for item in items:
        if isinstance(item, list):
            taken += [record for record in item if is_wanted(record)]
            if left := [record for record in item if not is_wanted(record)]:
                kept.append(left)
        elif is_wanted(item):
            taken.append(item)
        else:
            kept.append(item)
    return taken, kept


def coroutine_workers(
    function: Callable[[Item], Awaitable[object]],
    *,
    tasks: asyncio.TaskGroup,
    results: Results,
    report: Callable[[], None],
    report_soon: Callable[[], None],
    has_more: Callable[[], bool],
    timeout_s: float | None,
    wants_outputs: bool,
) -> CoroutinePool[Item]:
    """Return workers for an async function. `report` takes in the results, and queues more work if
    there is some; `has_more` says whether it would."""
    loop = asyncio.get_running_loop()
    done, seconds_of = results.done, results.seconds
    is_report_due = False

    async def call_in_time(item: Item) -> object:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await function(item)
        except TimeoutError as error:
            if limit.expired():
                text = f"it took longer than timeout_s = {timeout_s}"
                raise TimeoutError(text) from error
            raise

    def report_late() -> None:
        nonlocal is_report_due
        is_report_due = False
        if done:
            report_soon()

    def settle(item: Item, result: object, seconds: float) -> None:
        nonlocal is_report_due
        if result is not None or wants_outputs or isinstance(item, list):
            results.settle(item, result, seconds, wants_outputs=wants_outputs)
            report_soon()
            return
        done.append(item)
        seconds_of.append(seconds)
        if item.next is not None:
            report_soon()
        elif not is_report_due:
            is_report_due = True
            loop.call_later(REPORT_S, report_late)

    def refill() -> None:
        # A report for each who has nothing to do would keep the loop from what brings more.
        if has_more():
            report()
        else:
            report_soon()

    call = function if timeout_s is None else call_in_time
    return CoroutinePool(call, tasks=tasks, settle=settle, refill=refill)


def thread_workers(
    function: Callable[[Item], object],
    *,
    tasks: asyncio.TaskGroup,
    results: Results,
    report_soon: Callable[[], None],
    wants_outputs: bool,
) -> ThreadPool[Item]:
    """Return workers for a function that blocks."""
    loop = asyncio.get_running_loop()

    def call(item: Item) -> object:
        result = function(item)
        if inspect.isawaitable(result):
            # It looked like a plain function and was none: a lambda, or a wrapper.
            return asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()
        return result

    def settle(item: Item, result: object, seconds: float) -> None:
        results.settle(item, result, seconds, wants_outputs=wants_outputs)
        report_soon()

    return ThreadPool(call, tasks=tasks, settle=settle, name="burrow-worker")


async def _awaited(result: Awaitable[object]) -> object:
    return await result
