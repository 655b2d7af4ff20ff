"""Each backend is started once a run, when the first test needs it.

Under pytest-xdist all tests of one backend are given to one worker (`tests/conftest.py`).
"""

import gc
import warnings
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.peers.cache import Absent
from tests.stores.backend import BACKENDS, Backend, running
from tests.stores.servers.registry import reason_to_skip

REGISTRIES = {"mongodb": "pypi", "cassandra": "maven", "dynamodb": "maven"}
"""Where a backend's server comes from, if not from Debian."""


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request, tmp_path_factory) -> Iterator[Backend]:
    """Run the suite on every backend."""
    name = request.param
    with ExitStack() as until_end:
        try:
            backend = until_end.enter_context(running(name)(tmp_path_factory.mktemp(name)))
        except Absent as absent:
            pytest.skip(reason_to_skip(REGISTRIES.get(name, "debian"), absent))
        yield backend
    with warnings.catch_warnings():
        # What a driver left to the garbage collector is no later test's fault.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def url(backend) -> str:
    """Give a store that holds nothing yet."""
    fresh: str = backend.fresh_url()
    return fresh
