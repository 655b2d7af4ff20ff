"""Programs of others that a test needs, from a package registry or the cache."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from benchmarks.peers.cache import Absent

Found = TypeVar("Found")


def fetched(find: Callable[[], Found]) -> Found:
    """Return what was found; skip the test that runs if it cannot be had now."""
    try:
        return find()
    except Absent as reason:
        pytest.skip(f"offline: {reason}")
