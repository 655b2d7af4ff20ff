"""What calls are handed, and what became of it: collected by workers, taken in by the driver."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from waterclock.burrow.core.failures import Failed
from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.source import Output, outputs_of

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
