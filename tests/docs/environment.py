"""What a stranger has: our wheel in a new virtual environment, with what it says it needs.

Versions and hashes are those of requirements.lock, so nothing is resolved, and what make fetched is
taken from uv's cache. What the wheel forgot to require is not there.
"""

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT

LOCK = ROOT / "requirements.lock"
UV = Path(sys.executable).with_name("uv")
EXTRAS = ("kafka", "redis", "spark")
BESIDE = ("opentelemetry-sdk", "redis")
"""What examples tell their reader to install besides."""
_PIN = re.compile(r"^([\w.-]+)==.*\n(?: .*\n)*", re.MULTILINE)


def wheel(folder: Path) -> Path:
    """Build the wheel into a folder, with the build backend of the lock."""
    return _built("--wheel", folder)


def sdist(folder: Path) -> Path:
    """Build the source distribution into a folder, with the build backend of the lock."""
    return _built("--sdist", folder)


def _built(kind: str, folder: Path) -> Path:
    _uv("build", kind, "--no-build-isolation", "--python", sys.executable, "-o", folder, ROOT)
    (built,) = (*folder.glob("*.whl"), *folder.glob("*.tar.gz"))
    return built


def environment(folder: Path, *, is_bare: bool = False) -> Path:
    """Make a virtual environment with the wheel, with its extras unless it is to be bare; return
    where its programs are."""
    built = wheel(folder / "dist")
    _uv("venv", "--python", sys.executable, folder / "env")
    python = folder / "env" / "bin" / "python"
    whole = [f"waterclock[{','.join(EXTRAS)}]", *BESIDE]
    (folder / "pins").write_text(pins(["waterclock"] if is_bare else whole))
    pinned = ("--require-hashes", "--no-deps", "--no-build-isolation", "-r", folder / "pins")
    try:
        _uv("pip", "install", "--offline", "--python", python, *pinned)
    except subprocess.CalledProcessError:  # the cache was cleaned: ask the registry
        _uv("pip", "install", "--python", python, *pinned)
    _uv("pip", "install", "--offline", "--no-deps", "--python", python, built)
    return python.parent


def pins(wanted: Iterable[str]) -> str:
    """Return the part of the lock that these need, themselves aside if they are ours."""
    locked = {str(canonicalize_name(each[1])): each[0] for each in _PIN.finditer(LOCK.read_text())}
    return "".join(locked[name] for name in sorted(needed(wanted)) if name in locked)


def needed(wanted: Iterable[str]) -> set[str]:
    """Return the names of all that must be installed, as the metadata of what is here says."""
    found: set[tuple[str, str]] = set()
    ahead = [Requirement(each) for each in wanted]
    while ahead:
        each = ahead.pop()
        name = canonicalize_name(each.name)
        for extra in ("", *each.extras):
            if (name, extra) in found:
                continue
            found.add((name, extra))
            for text in importlib.metadata.requires(name) or []:
                further = Requirement(text)
                if further.marker is None or further.marker.evaluate({"extra": extra}):
                    ahead.append(further)
    return {name for name, _ in found}


def _uv(*arguments: str | Path) -> None:
    subprocess.run([UV, "--quiet", *arguments], check=True, stderr=subprocess.PIPE, text=True)
