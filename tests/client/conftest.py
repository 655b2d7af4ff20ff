"""Secure folders that are made once: certificates take time. And the switch of the protocol."""

import os

import pytest

from tests.client.secured import secured_folder
from waterclock.client.native.links import NodeLinks
from waterclock.security.folder import SecureFolder

BY_GRPC = "WATERCLOCK_CLIENT_BY_GRPC"


@pytest.fixture(scope="session")
def secure_folder(tmp_path_factory: pytest.TempPathFactory) -> SecureFolder:
    """Return a folder as `secure init` makes it; leave it as it is."""
    return secured_folder(tmp_path_factory.mktemp("secured") / "secure")


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> SecureFolder:
    """Return that of another node."""
    return secured_folder(tmp_path_factory.mktemp("another") / "secure")


@pytest.fixture(autouse=bool(os.environ.get(BY_GRPC)))
def by_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no client dial nodes that offer links, whatever its settings say (`make test-grpc`)."""
    begin = NodeLinks.__init__

    def begin_disabled(links: NodeLinks, *given: object, **_: bool) -> None:
        begin(links, *given, is_enabled=False)  # type: ignore[arg-type]

    monkeypatch.setattr(NodeLinks, "__init__", begin_disabled)
