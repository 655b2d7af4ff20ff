"""Opening a log on a real folder: other processes, entries of another kind, and no permission."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.stores import FIRST, batch_of, message, open_store, rows_of
from waterclock.log.segment import segment_name
from waterclock.model.errors import FolderInUse, ForeignFile
from waterclock.storage.folders.os_folder import OsFolder

ROOT = Path(__file__).parents[2]
CHILD = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

HOLD = """
import sys
from tests.storage.stores import batch_of, message, open_store
from waterclock.runtime.clock import SystemClock
from waterclock.storage.flush import GroupCommit
from waterclock.storage.folders.os_folder import OsFolder

store = open_store(OsFolder(sys.argv[1]))
commit = GroupCommit(store, SystemClock())
for number in range(1_000_000):
    answer = store.append(batch_of([message(number)], 1_000), now_ms=1_000)
    commit.wait_for(answer.durable_at)
    print(number, flush=True)
"""

DENIED = """
import os, sys
from tests.storage.stores import open_store
from waterclock.model.errors import WaterclockError
from waterclock.storage.folders.os_folder import OsFolder

if os.geteuid() == 0:  # root may read everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        open_store(OsFolder(path))
    except WaterclockError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def parent() -> Iterator[Path]:
    """A folder that anyone may pass."""
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        yield Path(parent)
        for child in Path(parent).iterdir():
            child.chmod(0o755)


@pytest.fixture
def path(parent: Path) -> Path:
    return begun(parent / "log")


def begun(path: Path) -> Path:
    """Make a log of three messages."""
    store = open_store(OsFolder(path))
    for number in range(3):
        store.append(batch_of([message(number)], 1_000), now_ms=1_000)
    store.close()
    return path


def files(path: Path) -> dict[str, bytes]:
    """Return what is in a folder, but for the owner's number in the lock."""
    found = {entry.name: entry.read_bytes() for entry in path.iterdir() if entry.is_file()}
    return found | {"LOCK": b""}


def test_a_log_is_read_back_from_a_real_folder(path):
    store = open_store(OsFolder(path))

    rows, refused = rows_of(store)

    assert [row.value for row in rows.values()] == [b"value 0", b"value 1", b"value 2"]
    assert not refused
    store.close()


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
@pytest.mark.parametrize(
    "name", [segment_name(9), FIRST.replace("seg", "ids"), "recovery-point", "LOCK"]
)
def test_an_entry_of_another_kind_under_a_name_of_ours_is_foreign(path, kind, name):
    (path / name).unlink(missing_ok=True)
    before = files(path)
    match kind:
        case "folder":
            (path / name).mkdir()
        case "link":
            (path / name).symlink_to(path / FIRST)
        case _:
            os.mkfifo(path / name)

    with pytest.raises(ForeignFile, match=f"{name} is not a regular file.*move it away"):
        open_store(OsFolder(path))

    assert files(path).items() >= before.items()


def test_a_file_where_the_folder_should_be_is_foreign(path):
    with pytest.raises(ForeignFile, match=FIRST):
        open_store(OsFolder(path / FIRST))


def test_a_folder_in_use_is_refused_until_its_owner_is_gone_and_nothing_it_acknowledged_is_lost(
    path,
):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        cwd=ROOT,
        env=CHILD,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        acknowledged = [int(child.stdout.readline()) for _ in range(20)]

        with pytest.raises(FolderInUse, match=f"{path} is in use by process {child.pid}"):
            open_store(OsFolder(path))
        child.kill()
        acknowledged += map(int, child.stdout)

    rows, refused = rows_of(open_store(OsFolder(path)))
    found = {row.message_id for row in rows.values()}
    assert {message(number).message_id for number in acknowledged} <= found
    assert not refused


def denied(*paths: Path) -> list[str]:
    """Return what openings by somebody without privileges say."""
    done = subprocess.run(
        [sys.executable, "-c", DENIED, *map(str, paths)],
        cwd=ROOT,
        env=CHILD,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_folder_without_permission_is_named(parent):
    modes = {"none": 0o000, "pass": 0o111, "read": 0o555}
    paths = [begun(parent / name) for name in modes]
    before = [files(path) for path in paths]
    for path, mode in zip(paths, modes.values(), strict=True):
        path.joinpath("LOCK").chmod(0o400)
        path.chmod(mode)

    said = denied(*paths)

    assert len(said) == len(paths)
    for path, line in zip(paths, said, strict=True):
        assert line.startswith("StorageFailed")
        assert str(path) in line
        assert "Permission denied" in line
        path.chmod(0o755)
    assert [files(path) for path in paths] == before


def test_a_file_without_permission_is_named(parent):
    names = [FIRST, FIRST.replace("seg", "index"), "recovery-point"]
    paths = [begun(parent / name) for name in names]
    before = [files(path) for path in paths]
    for path, name in zip(paths, names, strict=True):
        path.chmod(0o777)
        for entry in path.iterdir():
            entry.chmod(0o000 if entry.name == name else 0o666)

    said = denied(*paths)

    assert len(said) == len(paths)
    for path, name, line in zip(paths, names, said, strict=True):
        assert line.startswith("StorageFailed")
        assert str(path / name) in line
        assert "Permission denied" in line
        (path / name).chmod(0o600)
    assert [files(path) for path in paths] == before
