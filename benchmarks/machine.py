"""The machine a benchmark runs on: what it is, one core of it, and a folder on its disk.

Numbers mean nothing without the machine, so its facts travel with them. A benchmark writes to a
real disk, in `$BENCH_DATA` or `bench-data` of the repository, and leaves nothing behind.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("numpy", "pyarrow", "crc32c")
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
DISK_FREE_LEFT = 1 << 30
"""Never fill the disk beyond this."""

Facts = dict[str, str | int | float]


def facts(scratch: Path, **more: str | float) -> Facts:
    """Say what this machine is and what runs on it."""
    versions = {name: _package_version(name) for name in PACKAGES}
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "disk": file_system(scratch),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **versions,
        **more,
    }


def version() -> str:
    """Give the commit that is measured, marked if the source was changed since."""
    commit = _git("describe", "--always", "--tags").stdout.strip()
    # Before the first commit there is nothing to describe.
    if not commit:
        return "not committed"
    changed = _git("status", "--porcelain", "--", "src").stdout.strip()
    return f"{commit}-dirty" if changed else commit


def changed_files() -> list[str]:
    """Give the files, of the source and of the benchmarks, that are not as they were committed.

    What a recorded run writes (RESULTS.md, plots) is none of them: runs follow each other.
    """
    paths = ("src", "proto", "requirements.lock", ":(glob)benchmarks/**/*.py")
    found = _git("status", "--porcelain", "--untracked-files=all", "--", *paths).stdout
    return [line[3:] for line in found.splitlines()]


def _git(*args: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def source_digest() -> str:
    """Give a digest of the source files, as they are now, of what is loaded of Waterclock.

    Processes started later load the files anew: if the digest has changed, so has what is measured.
    Where nothing is loaded, all of it is up to those processes.
    """
    names = sorted(name for name in sys.modules if name.partition(".")[0] == "waterclock")
    files = [file for name in names if (file := sys.modules[name].__file__)]
    files = files or [str(file) for file in sorted((ROOT / "src").rglob("*.py"))]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()


def pin_to_one_core() -> int:
    """Bind this thread, and all threads and processes it starts, to one core; say which."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def rss_mb() -> float:
    """Give the memory of this process that is in RAM, mapped files included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status does not tell VmRSS")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Lend an empty folder on the disk; it goes with all that is in it."""
    parent = Path(os.environ.get("BENCH_DATA") or ROOT / "bench-data").absolute()
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another benchmark is at work in there
            parent.rmdir()


def fitting(count: int, *, item_bytes: int, folder: Path) -> int:
    """Give as many of `count` items as the disk has room for."""
    room = shutil.disk_usage(folder).free - DISK_FREE_LEFT
    return max(1, min(count, room // item_bytes))


def file_system(folder: Path) -> str:
    """Give the type of the file system a folder is on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [
        (len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)
    ]
    return max(holding)[1] if holding else "unknown"


def forget_cached(file: Path) -> None:
    """Ask the kernel to drop the file from its page cache."""
    number = os.open(file, os.O_RDONLY)
    try:
        os.fsync(number)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(number)


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _package_version(name: str) -> str:
    try:
        return package_version(name)
    except PackageNotFoundError:
        return "not installed"
