"""What only a real operating system's files can do: run full, write short, be mapped."""

import contextlib
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import StorageFailed, StorageFull
from waterclock.storage.folders.os_folder import PARTS_MAX, OsFile, OsFolder
from waterclock.storage.folders.parts import after


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[OsFolder]:
    with contextlib.closing(OsFolder(tmp_path / "folder")) as folder:
        yield folder


@pytest.fixture
def file(folder: OsFolder) -> OsFile:
    return folder.create("a.seg")


def python(program: str, *arguments: object, prefix: tuple[str, ...] = ()) -> str:
    """Run a program in a process of its own and return what it printed."""
    run = subprocess.run(
        [*prefix, sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


# Full disks and limits.

FILL_A_SMALL_DISK = """
import os, subprocess, sys
from waterclock.model.errors import StorageFull
from waterclock.storage.folders.os_folder import OsFolder

subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", sys.argv[1]], check=True)
folder = OsFolder(sys.argv[1] + "/folder")
file = folder.create("a.seg")
file.write(0, [b"kept"])
try:
    file.allocate(1 << 21)
except StorageFull as error:
    print(error)
print(file.size(), os.stat(folder.path / "a.seg").st_size)
try:
    file.write(4, [bytes(1 << 21)])
except StorageFull as error:
    print(error)
print(file.size() == os.stat(folder.path / "a.seg").st_size <= 1 << 20)
other = OsFolder(sys.argv[1] + "/folder")
other.lock()
file.truncate(4)
file.write(4, [b" room"])
file.sync()
print(bytes(file.view(0, 9)))
"""


def test_a_full_disk_is_reported_leaves_the_size_and_recovers(tmp_path):
    """A real file system of 1 MB, in a mount namespace of its own that goes with the process."""
    ways = [("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")]
    allowed = [way for way in ways if subprocess.run([*way, "true"], check=False).returncode == 0]
    if not allowed:
        pytest.skip("neither root nor user namespaces: no disk of 1 MB to fill")
    path = tmp_path / "folder" / "a.seg"

    assert python(FILL_A_SMALL_DISK, tmp_path, prefix=allowed[0]).splitlines() == [
        f"allocate {path}: No space left on device",
        "4 4",
        f"write {path}: No space left on device",
        "True",
        "b'kept room'",
    ]


FILL_A_LIMIT = """
import os, resource, sys
from waterclock.model.errors import StorageFailed
from waterclock.storage.folders.os_folder import OsFolder

file = OsFolder(sys.argv[1]).create("a.seg")
# Python ignores SIGXFSZ, so the limit shows as a short write, then as EFBIG.
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    file.write(0, [b"a" * 4_000, memoryview(b"b" * 4_000), bytearray(b"c" * 4_000)])
except StorageFailed as error:
    print(error)
print(file.size())
try:
    file.allocate(20_000)
except StorageFailed as error:
    print(error)
print(file.size(), os.stat(sys.argv[1] + "/a.seg").st_size)
file.write(9_000, [b"d" * 1_000])
print(bytes(file.view(0, 10_000)) == b"a" * 4_000 + b"b" * 4_000 + b"c" * 1_000 + b"d" * 1_000)
"""


def test_a_write_cut_short_by_the_system_goes_on_then_fails_with_its_reason(tmp_path):
    path = tmp_path / "a.seg"

    assert python(FILL_A_LIMIT, tmp_path).splitlines() == [
        f"write {path}: File too large",
        "10000",
        f"allocate {path}: File too large",
        "10000 10000",
        "True",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_device_without_space_is_full_not_failed():
    file = OsFile("full", Path("/dev/full"), os.open("/dev/full", os.O_RDWR))

    with pytest.raises(StorageFull, match="/dev/full: No space left"):
        file.write(0, [b"a"])
    assert file.size() == 0
    file.close()


def test_a_descriptor_that_cannot_sync_has_failed(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    file = OsFile("pipe", tmp_path / "pipe", writing)

    for act in (file.sync, lambda: file.write(0, [b"a"]), lambda: file.truncate(0)):
        with pytest.raises(StorageFailed, match=r"pipe: \w+"):
            act()
    file.close()


def test_a_file_cut_behind_our_back_is_refused_not_mapped(folder, file):
    file.write(0, [bytes(10_000)])
    os.truncate(folder.path / "a.seg", 100)

    with pytest.raises(StorageFailed, match="map"):
        file.view(0, 10_000)


# Writes the system takes in pieces.


@given(parts=st.lists(st.binary(max_size=9), max_size=9), skip=st.integers(0, 81))
def test_what_follows_a_short_write_is_all_that_was_not_written(parts, skip):
    rest = after([memoryview(part) for part in parts], skip)

    assert b"".join(rest) == b"".join(parts)[skip:]
    assert all(rest)


def test_exactly_as_many_parts_as_the_system_takes_and_one_more_are_written(file):
    for count in (PARTS_MAX, PARTS_MAX + 1):
        file.write(0, [b"ab"] * count)
        assert bytes(file.view(0, file.size())) == b"ab" * count


# Maps.


def test_views_share_one_map_until_the_file_outgrows_it(file):
    file.allocate(10_000)
    first, second = file.view(0, 100), file.view(5_000, 10_000)
    file.allocate(20_000)
    third = file.view(0, 20_000)

    assert first.obj is second.obj
    assert third.obj is not first.obj


def test_a_view_within_the_old_map_does_not_map_again(file):
    file.allocate(10_000)
    first = file.view(0, 10_000)
    file.allocate(20_000)

    assert file.view(0, 10_000).obj is first.obj


def test_a_map_goes_with_its_last_view_not_with_the_file(file):
    file.write(0, [b"still mapped"])
    view = file.view(6, 12)
    alive = weakref.ref(view.obj)
    file.close()

    assert bytes(view) == b"mapped"
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def test_old_views_are_live_and_read_below_a_cut_and_after_regrowth(file):
    file.write(0, [b"below".ljust(8_192, b"."), bytes(8_192)])
    view = file.view(0, 8_192)
    file.truncate(8_192)
    file.write(0, [b"BELOW"])

    assert bytes(view[:6]) == b"BELOW."
    file.allocate(16_384)
    assert bytes(file.view(8_192, 16_384)) == bytes(8_192)
