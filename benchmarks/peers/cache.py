"""Where the programs of the peers come from: the system, or a package registry and then a cache.

Nothing is installed. Debian's packages and npm's are downloaded and unpacked, Go's are built, also
from a commit of a repository, Maven's are copied, Python's are put in a folder, all below
`$BENCH_CACHE` or `~/.cache/waterclock-bench`; deleting that folder undoes everything.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

FETCH_S_MAX = 600
LIBRARIES = ("lib", "usr/lib")


class Absent(Exception):
    """A peer cannot be had on this machine. The text says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where a peer's programs are: in a folder laid out like a root, or in the system."""

    root: Path | None

    def find(self, name: str) -> str:
        """Give the path of a program."""
        for folder in ("usr/bin", "bin", ""):
            if self.root is not None and (file := self.root / folder / name).exists():
                return str(file)
        if found := shutil.which(name):
            return found
        raise Absent(f"there is no {name}")

    def environ(self) -> dict[str, str]:
        """Give the environment in which they find their libraries."""
        if self.root is None:
            return dict(os.environ)
        folders = [str(f) for top in LIBRARIES for f in (self.root / top).glob("*-linux-gnu*")]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}


def debian(package: str, programs: Iterable[str]) -> Programs:
    """Find the programs in the system, or unpack Debian's package and what it depends on."""
    if all(shutil.which(program) for program in programs):
        return Programs(None)
    if not shutil.which("apt-get"):
        raise Absent(f"{package} is not installed and there is no apt-get to fetch it with")

    def fill(folder: Path) -> None:
        apt = _apt(folder / "apt")
        _run([*apt, "--quiet", "update"])
        _run([*apt, "--yes", "--no-install-recommends", "--download-only", "install", package])
        for archive in sorted((folder / "apt").glob("*.deb")):
            _run(["dpkg", "-x", str(archive), str(folder)])
        shutil.rmtree(folder / "apt")

    return Programs(cached(f"debian-{package}", fill))


def _apt(folder: Path) -> list[str]:
    """Give an apt-get that keeps its lists and archives in a folder of ours."""
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "partial").mkdir()
    options = {
        "Dir::State::lists": folder / "lists",
        "Dir::Cache::archives": folder,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Debug::NoLocking": 1,
        "APT::Sandbox::User": "root",
        "Acquire::Retries": 3,
    }
    return ["apt-get", *(part for k, v in options.items() for part in ("-o", f"{k}={v}"))]


def go(module: str, version: str) -> Path:
    """Build the program of a Go module; give the folder it is in."""
    if not shutil.which("go"):
        raise Absent(f"there is no Go to build {module} with")

    def fill(folder: Path) -> None:
        modules = folder / "modules"
        environ = {**os.environ, "GOBIN": str(folder), "GOMODCACHE": str(modules)}
        _run(["go", "install", f"{module}@{version}"], environ=environ)
        _run(["go", "clean", "-modcache"], environ=environ)

    return cached(f"go-{module.split('/')[-2]}-{version}", fill)


def go_alone(module: str, version: str, package: str) -> Path:
    """Build a program of a Go module from nothing but that version, for registries that do not
    list a module's versions, which `go install` asks for; give the folder it is in."""
    if not shutil.which("go"):
        raise Absent(f"there is no Go to build {module} with")
    name = package.split("/")[-1]

    def fill(folder: Path) -> None:
        source = folder / "source"
        source.mkdir()
        (source / "go.mod").write_text(f"module peer\n\nrequire {module} {version}\n")
        _go_build(source, package, folder / name, flags=("-mod=mod",))

    return cached(f"go-{name}-{version}", fill)


def go_commit(name: str, repository: str, commit: str, *, tree: str, package: str) -> Path:
    """Build a Go program from a folder of a repository as it was at a commit; give the folder it
    is in."""
    for program in ("git", "go"):
        if not shutil.which(program):
            raise Absent(f"there is no {program} to get {name} with")

    def fill(folder: Path) -> None:
        clone, source, archive = folder / "clone", folder / "source", folder / "source.tar"
        _run(["git", "clone", "--quiet", "--bare", repository, str(clone)])
        get = ["git", f"--git-dir={clone}", "archive", f"--output={archive}"]
        _run([*get, f"{commit}:{tree}"])
        source.mkdir()
        _run(["tar", "-xf", str(archive), "-C", str(source)])
        _go_build(source, package, folder / name)
        shutil.rmtree(clone)
        archive.unlink()

    return cached(f"go-{name}-{commit[:12]}", fill)


def _go_build(source: Path, package: str, program: Path, *, flags: Iterable[str] = ()) -> None:
    """Build a program, and leave only that."""
    environ = {**os.environ, "GOMODCACHE": str(source / "modules")}
    command = ["go", "build", "-C", str(source), *flags, "-o", str(program), package]
    _run(command, environ=environ)
    _run(["go", "clean", "-modcache"], environ=environ)
    shutil.rmtree(source)


POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>benchmarks</groupId><artifactId>peer</artifactId><version>1</version><dependencies>
{dependencies}</dependencies></project>
"""
DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
{more}</dependency>
"""
ALONE = """<exclusions>
<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
"""


def maven(group: str, artifact: str, version: str) -> Path:
    """Copy the archives of a Maven artifact and of what it depends on into a folder; give it."""
    return _copied(
        f"maven-{artifact}-{version}", DEPENDENCY.format(group, artifact, version, more="")
    )


def maven_alone(name: str, *artifacts: tuple[str, str, str]) -> Path:
    """Copy the archives of just these Maven artifacts (group, name, version) into a folder."""
    return _copied(name, "".join(DEPENDENCY.format(*each, more=ALONE) for each in artifacts))


def _copied(name: str, dependencies: str) -> Path:
    if not shutil.which("mvn"):
        raise Absent(f"there is no Maven to fetch {name} with")

    def fill(folder: Path) -> None:
        pom = folder / "pom.xml"
        pom.write_text(POM.format(dependencies=dependencies))
        goal = "dependency:copy-dependencies"
        _run(["mvn", "-q", "-B", "-f", str(pom), goal, f"-DoutputDirectory={folder}"])

    return cached(name, fill)


def python(package: str, version: str) -> Path:
    """Put a Python package into a folder of its own; give it, for `PYTHONPATH`."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    python = ["--python", sys.executable] if uv.exists() else []

    def fill(folder: Path) -> None:
        name = f"{package}=={version}"
        _run([*command, "install", "--quiet", *python, "--target", str(folder), name])

    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return cached(f"python-{package}-{version}-{tag}", fill)


def npm(package: str, version: str) -> Path:
    """Unpack a package of npm, without what it depends on; give its folder."""
    if not shutil.which("npm"):
        raise Absent(f"there is no npm to fetch {package} with")

    def fill(folder: Path) -> None:
        _run(["npm", "pack", f"{package}@{version}", "--pack-destination", str(folder)])
        for archive in folder.glob("*.tgz"):
            _run(["tar", "-xzf", str(archive), "-C", str(folder)])
            archive.unlink()

    return cached(f"npm-{package}-{version}", fill) / "package"


def program_version(programs: Programs, name: str, flag: str) -> str:
    """Ask a program for its version."""
    command = [programs.find(name), flag]
    run = subprocess.run(
        command, env=programs.environ(), capture_output=True, text=True, check=False
    )
    found = re.search(r"\d+(\.\d+)+", run.stdout)
    return found.group() if found else "unknown"


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Give a folder of the cache, filled once. It appears only when it is whole."""
    folder = cache_folder() / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{name}-"))
    try:
        fill(fresh)
        fresh.rename(folder)
    except OSError as error:
        if not folder.exists():  # else another process was sooner, and its copy is as good
            raise Absent(f"{name} could not be put into the cache: {error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    """Give the folder all of this is kept in."""
    return Path(os.environ.get("BENCH_CACHE") or Path.home() / ".cache" / "waterclock-bench")


def _run(command: list[str], *, environ: dict[str, str] | None = None) -> None:
    try:
        run = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=FETCH_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Absent(f"{command[0]} failed: {error}") from error
    if run.returncode:
        lines = (run.stderr or run.stdout).strip().splitlines() or ["no reason given"]
        raise Absent(f"`{' '.join(command[:3])} ...` failed: {lines[-1]}")
