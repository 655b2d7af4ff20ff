"""Each backend is started once a run, when the first test needs it.

Under pytest-xdist all tests of one backend are given to one worker (`tests/conftest.py`).
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.peers.cache import Absent
from tests.stores.backend import NAMES, Backend, running
from tests.stores.servers.registry import reason_to_skip

DRIVERS_WARNINGS = {
    # Cancelled while it connects, pymongo leaves the socket to the garbage collector.
    "mongodb": [pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")],
}
BACKENDS = [pytest.param(name, marks=DRIVERS_WARNINGS.get(name, [])) for name in NAMES]
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


@pytest.fixture
def url(backend) -> str:
    """Give a store that holds nothing yet."""
    fresh: str = backend.fresh_url()
    return fresh
