"""A time, and a secure folder that is made once and copied for each test that wants one."""

import shutil
from pathlib import Path

import pytest

from tests.security.moments import NOW_MS
from waterclock.security.folder import SecureFolder


@pytest.fixture(scope="session")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as `secure init` makes it; leave it as it is."""
    folder = SecureFolder(tmp_path_factory.mktemp("made") / "data" / "secure")
    folder.make(hosts=["node-1.example"], grpc_port=9000, http_port=8080, now_ms=NOW_MS)
    return folder.path


@pytest.fixture
def folder(made_folder: Path, tmp_path: Path) -> SecureFolder:
    """Return a secure folder of this test's own."""
    path = tmp_path / "secure"
    shutil.copytree(made_folder, path, symlinks=True)
    return SecureFolder(path)
