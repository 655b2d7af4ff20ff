"""Any order of events and faults: nothing committed is lost, and in the end the partition works."""

import pytest

from tests.cluster.replication.chaos import Chaos


@pytest.mark.parametrize("seed", range(60))
def test_nothing_committed_is_lost_whatever_happens(seed):
    Chaos(seed).run()
