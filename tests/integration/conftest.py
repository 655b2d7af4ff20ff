"""The node that hostile tests share, in good health before and after each of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.hostile_node import HostileNode


@pytest.fixture(scope="session")
def hostile_node(tmp_path_factory: Any) -> Iterator[HostileNode]:
    """Return the one node of this process, for as long as there are tests."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    with HostileNode(folder) as running:
        yield running
        running.check_well()


@pytest.fixture
def node(hostile_node: HostileNode) -> Iterator[HostileNode]:
    """Return a node with something in it; see afterwards that it serves as before."""
    hostile_node.run(hostile_node.furnish())
    yield hostile_node
    hostile_node.run(hostile_node.sing())
    hostile_node.check_well()
