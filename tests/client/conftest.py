"""Secure folders that are made once: certificates take time."""

import pytest

from tests.client.secured import secured_folder
from waterclock.security.folder import SecureFolder


@pytest.fixture(scope="session")
def secure_folder(tmp_path_factory: pytest.TempPathFactory) -> SecureFolder:
    """Return a folder as `secure init` makes it; leave it as it is."""
    return secured_folder(tmp_path_factory.mktemp("secured") / "secure")


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> SecureFolder:
    """Return that of another node."""
    return secured_folder(tmp_path_factory.mktemp("another") / "secure")
