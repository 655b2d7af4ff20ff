"""Secure folders that are made once: certificates take time."""

import time
from pathlib import Path

import pytest

from waterclock.security.folder import SecureFolder


def _made(path: Path) -> SecureFolder:
    folder = SecureFolder(path)
    folder.make(grpc_port=9000, http_port=8080, now_ms=time.time_ns() // 1_000_000)
    return folder


@pytest.fixture(scope="session")
def secure_folder(tmp_path_factory: pytest.TempPathFactory) -> SecureFolder:
    """Return a folder as `secure init` makes it; leave it as it is."""
    return _made(tmp_path_factory.mktemp("secured") / "secure")


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> SecureFolder:
    """Return that of another node."""
    return _made(tmp_path_factory.mktemp("another") / "secure")
