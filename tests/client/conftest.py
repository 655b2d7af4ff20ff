"""Secure folders that are made once: certificates take time. And the switch of the protocol."""

import os

import pytest

from tests.client.secured import secured_folder
from tests.server.served import NATIVE
from waterclock.client.native.links import NodeLinks
from waterclock.security.folder import SecureFolder


@pytest.fixture(scope="session")
def secure_folder(tmp_path_factory: pytest.TempPathFactory) -> SecureFolder:
    """Return a folder as `secure init` makes it; leave it as it is."""
    return secured_folder(tmp_path_factory.mktemp("secured") / "secure")


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> SecureFolder:
    """Return that of another node."""
    return secured_folder(tmp_path_factory.mktemp("another") / "secure")


@pytest.fixture(autouse=bool(os.environ.get(NATIVE)))
def by_the_native_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every client dial the nodes that offer it, whatever its settings say."""
    begin = NodeLinks.__init__

    def begin_enabled(links: NodeLinks, *given: object, **_: bool) -> None:
        begin(links, *given, is_enabled=True)  # type: ignore[arg-type]

    monkeypatch.setattr(NodeLinks, "__init__", begin_enabled)
