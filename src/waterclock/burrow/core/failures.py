"""What a failure means: try again, give up, or stop everything.

Whether a retry can help is a question of the error's class. Records that were left unfinished one
after another, with no success between them, are a sign that it is not the records: then the pool
halts before it has gone through the whole topic in vain.
"""

from collections.abc import Sequence

from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.records import Record


class PermanentError(Exception):
    """Raise this, or a class of it, for a record that will never succeed: it is not tried again."""


class Failed(Exception):
    """Raise or return this from a function of lists: these records failed, the others are done.
    What the others are to produce, in a transaction, goes along as `outputs`."""

    def __init__(
        self, records: Sequence[Record], error: BaseException | str, *, outputs: object = None
    ) -> None:
        super().__init__(f"{len(records)} records failed: {error}")
        self.records = list(records)
        self.outputs = outputs
        self.error = error if isinstance(error, BaseException) else RuntimeError(error)


class Failures:
    """The rule for failed attempts, and the count of records left in a row."""

    __slots__ = ("_errors_max", "_max_retries", "_permanent", "in_a_row")

    def __init__(self, config: EngineConfig) -> None:
        self._max_retries = config.max_retries
        self._permanent: tuple[type[BaseException], ...] = (PermanentError, *config.permanent)
        self._errors_max = config.errors_max
        self.in_a_row = 0

    def is_final(self, record: Record, error: BaseException) -> bool:
        """Say whether a record that failed at its present attempt is not to be tried again."""
        if self.is_permanent(error):
            return True
        return self._max_retries is not None and record.attempt > self._max_retries

    def is_permanent(self, error: BaseException) -> bool:
        """Say whether no retry mends an error."""
        return isinstance(error, self._permanent)

    def succeeded(self) -> None:
        """Note that something worked."""
        self.in_a_row = 0

    def left(self, count: int) -> bool:
        """Note that so many records were left; say whether that is too many in a row."""
        self.in_a_row += count
        return self.in_a_row >= self._errors_max
