"""A warmer cold start: two things kept in the user's cache folder that make Spark come up sooner.

**A home.** Spark's workers import pyspark from a zip without compiled modules, about a second for
each. The home is a folder of links that looks like Spark's own, with folders in the place of the
zips; what pip compiled is then used.

**An archive of classes.** Half of a JVM's start is reading and checking classes. The first JVM is
asked to write down those it used when it ends, which is after the command has ended and aside of
all; later ones map that file. It is whole or not there: a JVM writes the magic number last, and
only a file that has it, left by a process that is gone, gets its final name.

Nothing here may fail a job: whatever the disk says, Spark then starts as slowly as it always did.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from waterclock.spark.session.java import Java

LINKED = ("bin", "jars", "sbin", "data")
MAGIC = 0xF00BABA8
"""What a dynamic archive of HotSpot begins with."""

_QUIET = "-Xlog:disable"
"""The JVM logs much about archives that is of no interest to a user of jobs."""


def cache_folder() -> Path:
    """Return the folder for what can always be made again."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "waterclock"


def spark_home(cache: Path, package: Path) -> Path | None:
    """Return a home whose workers start sooner, made if need be; None if it cannot be had."""
    try:
        home = cache / f"spark-{_digest(package.resolve())}"
        if not home.is_dir():
            _build(home, package.resolve())
    except OSError:
        return None
    return home


def class_options(cache: Path, home: Path, java: Java) -> list[str]:
    """Return what tells a JVM to use the archive, or to write one at its end."""
    try:
        archive = cache / f"classes-{_digest(home, java.command, java.version)}.jsa"
        is_awaited = _take_over(archive)
        if archive.is_file():
            return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", _QUIET]
    except OSError:
        return []
    if is_awaited:
        return []
    return [f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}", _QUIET]


def _build(home: Path, package: Path) -> None:
    """Make the folder of links aside and move it in place: two may do so at once."""
    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="spark-", dir=home.parent))
    try:
        for name in LINKED:
            if (package / name).exists():
                (made / name).symlink_to(package / name)
        for zipped in sorted((package / "python" / "lib").glob("*.zip")):
            _link_modules(made / "python" / "lib" / zipped.name, zipped, package)
        _ignoring_errors(made.rename, home)  # lost to another who made the same
    finally:
        if made.exists():
            shutil.rmtree(made, ignore_errors=True)


def _link_modules(place: Path, zipped: Path, package: Path) -> None:
    """Put a folder where Spark expects a zip: it is put on the path of Python all the same."""
    name = "pyspark" if zipped.name.startswith("pyspark") else zipped.name.partition("-")[0]
    installed = package.parent / name
    if installed.is_dir():
        place.mkdir(parents=True)
        (place / name).symlink_to(installed)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(zipped)


def _take_over(archive: Path) -> bool:
    """Give a whole archive its name, remove the torn; say if a process still writes one."""
    is_awaited = False
    for written in archive.parent.glob(f"{archive.name}.*"):
        writer = written.suffix.removeprefix(".")
        if writer.isdigit() and _is_open(written):
            is_awaited = True
        elif _is_whole(written):
            written.replace(archive)
        else:
            written.unlink(missing_ok=True)
    return is_awaited


def _is_whole(archive: Path) -> bool:
    with archive.open("rb") as file:
        return int.from_bytes(file.read(4), "little") == MAGIC


def _is_open(archive: Path) -> bool:
    """Say if a process writes this file, as far as we may see: another user's we may not."""
    target = str(archive)
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            with os.scandir(descriptors) as found:
                if any(os.readlink(each) == target for each in found):
                    return True
        except OSError:
            continue
    return False


def _ignoring_errors(act: Callable[[Path], object], path: Path) -> None:
    try:
        act(path)
    except OSError:
        return


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr([str(part) for part in parts]).encode(), digest_size=8).hexdigest()
