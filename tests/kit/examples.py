"""How many examples a test explores that says how many by itself."""

import os

QUICK_PART = 5


def examples(count: int) -> int:
    """Return so many, and a fifth of it for `make check`, as Hypothesis' profile `quick` has it."""
    return max(3, count // QUICK_PART) if os.environ.get("WATERCLOCK_QUICK") else count
