"""A stranger's first minutes: the lock is whole and names no registry, and CI skips nothing."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
DOCS_LOCK = ROOT / "requirements-docs.lock"
NODE_LOCK = ROOT / "requirements-node.lock"

REGISTRY = re.compile(
    r"://|^\s*--?(?:i|f|index|extra-index|find-links)\b|pypi|pythonhosted", re.MULTILINE
)
PIN = re.compile(r"^([\w.-]+)==([\w.]+)[^\n]*\\\n +--hash=sha256:", re.MULTILINE)


def names_registry(lock: str) -> bool:
    """Say if the lock is tied to one registry; it must install from any mirror."""
    return REGISTRY.search(lock) is not None


def unlocked(requirements: list[str], lock: str) -> list[str]:
    """Return the requirements that no pinned and hashed version in the lock meets."""
    pins = dict(PIN.findall(lock))
    wanted = [Requirement(text) for text in requirements]
    return [str(want) for want in wanted if not want.specifier.contains(pins.get(want.name, "0"))]


def run_suite(folder: Path, **environment: str) -> tuple[int, str]:
    """Run the planted tests below a copy of our conftest; return exit status and output."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    inherited = {key: value for key, value in os.environ.items() if key != "CI"}
    inherited["PYTHONPATH"] = str(ROOT)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder, env=inherited | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return run.returncode, run.stdout + run.stderr


def test_the_locks_name_no_registry():
    assert not names_registry(LOCK.read_text() + DOCS_LOCK.read_text() + NODE_LOCK.read_text())


def test_the_locks_hold_every_dependency():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["dev"]]

    assert unlocked(requirements, LOCK.read_text()) == []
    assert unlocked(settings["dependency-groups"]["docs"], DOCS_LOCK.read_text()) == []
    extras = re.findall(r"(?m)^IMAGE_EXTRAS := (.*)$", (ROOT / "Makefile").read_text())[0].split()
    of_image = [need for name in extras for need in project["optional-dependencies"][name]]
    assert unlocked([*project["dependencies"], *of_image], NODE_LOCK.read_text()) == []


def test_the_locks_agree():
    pins = dict(PIN.findall(LOCK.read_text()))
    others = dict(PIN.findall(DOCS_LOCK.read_text() + NODE_LOCK.read_text()))

    assert {
        name: others[name] for name in pins.keys() & others.keys() if others[name] != pins[name]
    } == {}


@pytest.mark.parametrize(
    "line", ["--index-url x", "-i x", "--find-links /w", "a @ https://a.invalid/a.whl", "# pypi"]
)
def test_a_registry_in_the_lock_is_found(line):
    assert names_registry(f"a==1 \\\n    --hash=sha256:0\n{line}\n")


def test_a_dependency_missing_from_the_lock_is_found():
    hashed = "\\\n    --hash=sha256:0\n"
    lock = f"a==1.5 {hashed}b==2 ; sys_platform == 'linux' {hashed}c==1\n"

    assert unlocked(["a>=1", "b>=2"], lock) == []
    assert unlocked(["a>=2", "c>=1", "d>=1"], lock) == ["a>=2", "c>=1", "d>=1"]


def test_a_skip_fails_ci_by_name_and_passes_at_home(plant):
    plant("test_passed.py", "def test_x(): pass")
    plant("test_file.py", "import pytest\npytest.importorskip('absent')")
    plant("test_mark.py", "import pytest\n@pytest.mark.skip\ndef test_x(): pass")
    plant("test_call.py", "import pytest\ndef test_x(): pytest.skip('later')")
    # A registry that does not answer is nobody's fault.
    plant("test_offline.py", "import pytest\ndef test_x(): pytest.skip('offline: no registry')")
    # Nor is a kernel that lacks what nodes do without.
    plant("test_aio.py", "import pytest\ndef test_x(): pytest.skip('no AIO: a sandbox')")
    # It ran and failed as foretold, which is no skip.
    expected = "import pytest\n@pytest.mark.xfail\ndef test_x(): assert False"
    folder = plant("test_xfail.py", expected)

    status, said = run_suite(folder, CI="1")

    assert status == pytest.ExitCode.TESTS_FAILED
    assert re.findall(r"skipped, which CI forbids: (\S+)", said) == [
        "test_call.py::test_x",
        "test_file.py",
        "test_mark.py::test_x",
    ]
    assert run_suite(folder)[0] == pytest.ExitCode.OK
