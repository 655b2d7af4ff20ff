"""What several files of these tests stand on."""

from collections.abc import Iterator

import pytest

from benchmarks.peers.cache import Absent
from tests.cluster.coordinator.etcd_servers import EtcdMember, programs, running
from tests.stores.servers.registry import reason_to_skip


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    """Run an etcd of one member."""
    try:
        programs()
    except Absent as absent:
        pytest.skip(reason_to_skip("debian", absent))
    with running(tmp_path_factory.mktemp("etcd")) as members:
        yield members[0]
