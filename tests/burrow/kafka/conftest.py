"""What the tests on a real Kafka share, besides the broker in `tests/conftest.py`."""

import itertools

import pytest

_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """Return a name no other test uses."""
    return f"topic-{next(_numbers)}"
