"""When a process that ended by itself is started again: at once, then later and later, then not."""

from typing import Final

DELAYS_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""One after the other, as long as it does not run well in between. After the last, it is over."""
WELL_S: Final = 60.0
"""A process that was ready for so long ran well: what ended it has nothing to do with before."""


class Restarts:
    """Those of one process."""

    def __init__(self) -> None:
        self._count = 0

    def __repr__(self) -> str:
        return f"<Restarts {self._count} in a row>"

    def ended(self, *, ready_s: float) -> float | None:
        """Return how long to wait before it is started again; None: it ended too often.

        It was ready for `ready_s` seconds, 0 if it never was.
        """
        if ready_s >= WELL_S:
            self._count = 0
        if self._count == len(DELAYS_S):
            return None
        self._count += 1
        return DELAYS_S[self._count - 1]
