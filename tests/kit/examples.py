"""How many examples a test explores: a part of them in `make test`, all of them in `make sim`."""

import os

QUICK_PART = 5
TEST_PART = 3
FULL = 100
"""Of a property that says nothing itself: what Hypothesis has as its default."""
IS_FULL = bool(os.environ.get("WATERCLOCK_FULL"))
"""It is `make sim` that runs."""


def examples(count: int) -> int:
    """Return so many for `make sim`, a third of it for `make test`, a fifth for `make check`."""
    if IS_FULL:
        return count
    part = QUICK_PART if os.environ.get("WATERCLOCK_QUICK") else TEST_PART
    return max(3, count // part)
