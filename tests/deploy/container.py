"""An image without a registry of images: the steps of a Dockerfile on top of this machine's root.

Where Docker would fetch a base image, the root of this machine stands in, with the Python that runs
the tests; it is never written to, for what a step writes goes to a layer (overlayfs) of its own.
A container is a process in namespaces of its own for mounts and the network, with that root
read-only, as the image's user and without any capability: what `docker run --read-only
--cap-drop ALL --security-opt no-new-privileges` gives it. Its network is a loopback of its own.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.peers.cache import Absent
from tests.deploy.dockerfile import Instruction, Stage, context, parse

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.base_prefix) / "bin"
PATH = f"{PYTHON}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
REGISTRIES = ("PIP_", "UV_", "SSL_", "REQUESTS_", "HTTP", "NO_PROXY", "http", "no_proxy")
"""What says where packages come from, on this machine."""
UNREACHED = re.compile(
    r"Failed to establish a new connection|name resolution|dns error|error sending request"
    r"|Network is unreachable|Read timed out"
)
"""What pip and uv say then."""
STEP_S_MAX = 300

MOUNT = """
set -e
mount -t overlay overlay -o {layers} {root}
mount --rbind /dev {root}/dev
mount -t proc proc {root}/proc
{more}
exec chroot {root} {command}
"""
LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket() as it:
    fcntl.ioctl(it, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
os.execvp(sys.argv[1], sys.argv[1:])
"""
NO_POWERS = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]


def why_not() -> str | None:
    """Return why no container can be had on this machine."""
    if os.geteuid() != 0:
        return "only root can make a root file system"
    needed = ("unshare", "nsenter", "setpriv", "chroot", "mount", "useradd", "awk")
    missing = [program for program in needed if not shutil.which(program)]
    return f"there is no {', '.join(missing)}" if missing else None


@dataclass(frozen=True, slots=True)
class Image:
    """What a Dockerfile makes."""

    layer: Path
    stage: Stage

    @property
    def environ(self) -> dict[str, str]:
        """What a program in it finds in its environment."""
        own = self.stage.environ()
        return {**own, "PATH": own["PATH"].replace("$PATH", PATH), "HOME": "/var/lib/waterclock"}

    @property
    def user(self) -> tuple[str, str]:
        """The user and group its programs run as."""
        user, group = self.stage.last("USER").text.split(":")
        return user, group

    def words(self, *arguments: str) -> list[str]:
        """Return what is run: the entrypoint with these, or else with the default ones."""
        given = list(arguments) or self.stage.last("CMD").words()
        return [*self.stage.last("ENTRYPOINT").words(), *given]


def volume(image: Image, path: str, folder: Path) -> Path:
    """Return a new folder that is to what the image has at a path as a new volume of Docker is."""
    like = (image.layer / path.strip("/")).stat()
    folder.mkdir()
    folder.chmod(like.st_mode)
    os.chown(folder, like.st_uid, like.st_gid)
    return folder


def build(folder: Path) -> Image:
    """Run every step of deploy/Dockerfile. Raises Absent if a package cannot be fetched now."""
    given = context(ROOT)
    layers: dict[str, Path] = {}
    stages = parse((ROOT / "deploy" / "Dockerfile").read_text())
    for index, stage in enumerate(stages):
        layer = folder / f"layer-{index}"
        layer.mkdir()
        _open_the_way_to_python(layer)
        layers[stage.name] = layer
        cwd = "/"
        for step in stage.steps:
            if step.name == "WORKDIR":
                cwd = step.text
                (layer / cwd.strip("/")).mkdir(parents=True, exist_ok=True)
            elif step.name == "COPY":
                _copy(step, layer, cwd, layers, given)
            elif step.name == "RUN":
                _run(step.text, layer, cwd, folder, stage.environ())
    return Image(layers[stages[-1].name], stages[-1])


def _open_the_way_to_python(layer: Path) -> None:
    # The Python of this machine may be in the home of root, where other users cannot enter.
    for parent in [*reversed(PYTHON.parents), PYTHON]:
        place = layer / str(parent).strip("/")
        place.mkdir(exist_ok=True)
        place.chmod(0o755)


def _copy(
    step: Instruction, layer: Path, cwd: str, layers: Mapping[str, Path], given: set[str]
) -> None:
    *sources, target = step.text.split()
    aim = layer / os.path.join(cwd, target).strip("/")
    if sources[0].startswith("--from="):
        origin = layers[sources.pop(0).removeprefix("--from=")]
        (source,) = sources
        shutil.copytree(origin / source.strip("/"), aim, symlinks=True, copy_function=os.link)
        return
    for source in sources:
        files = [file for file in given if file == source or file.startswith(f"{source}/")]
        assert files, f"COPY {source}: .dockerignore keeps it out of the build"
        for file in files:
            inner = file.removeprefix(source).strip("/") or Path(source).name
            place = aim if len(sources) == 1 and file == source else aim / inner
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, place)


def _run(command: str, layer: Path, cwd: str, folder: Path, own: Mapping[str, str]) -> None:
    """Run a step as Docker does: as root, by a shell, in the layer."""
    work, root = folder / "work", folder / "root"
    for each in (work, root):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir()
    cache = Path.home() / ".cache"
    script = MOUNT.format(
        layers=f"lowerdir=/,upperdir={layer},workdir={work}",
        root=root,
        more=f"mount --bind {cache} {root}{cache}" if cache.exists() else "",
        command=shlex.join(["/bin/sh", "-ec", f"cd {cwd}\n{command}"]),
    )
    environ = {k: v for k, v in os.environ.items() if k.startswith(REGISTRIES)}
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script],
        env={**environ, **own, "PATH": PATH, "HOME": str(Path.home())},
        capture_output=True, text=True, timeout=STEP_S_MAX, check=False,
    )  # fmt: skip
    if done.returncode and UNREACHED.search(done.stderr):
        raise Absent(f"the package registry cannot be reached: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, f"RUN {command}\n{done.stdout}{done.stderr}"


class Container:
    """One process in an image, and what others ask of it."""

    def __init__(self, image: Image, process: "subprocess.Popen[str]", environ: dict[str, str]):
        self.image = image
        self.process = process
        self.environ = environ

    @property
    def stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def ready(self) -> dict[str, object]:
        """Wait until the node takes requests; return what it said of itself."""
        said: dict[str, object] = json.loads(self.stdout.readline())
        return said

    def run(self, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run a program beside it, as `docker exec` does."""
        enter = ["nsenter", "--target", str(self.process.pid), "--mount", "--net", "--root"]
        return subprocess.run(
            [*enter, *_as_user(self.image), *words],
            env={**self.environ, **environ},
            capture_output=True, text=True, timeout=STEP_S_MAX, check=False,
        )  # fmt: skip


@contextmanager
def container(
    image: Image,
    folder: Path,
    *arguments: str,
    binds: Mapping[Path, str],
    environ: Mapping[str, str] = {},
    entrypoint: Sequence[str] = (),
    beside: Container | None = None,
) -> Iterator[Container]:
    """Run an image; `binds` are folders and files and where they stand in it, `:ro` after some.

    It shares the network of the one `beside` it. The process does not outlive the block.
    """
    work, root = folder / "work", folder / "root"
    for each in (work, root):
        each.mkdir(parents=True, exist_ok=True)
    words = [*entrypoint, *arguments] if entrypoint else image.words(*arguments)
    script = MOUNT.format(
        layers=f"lowerdir=/,upperdir={_layer_with(image, folder, binds)},workdir={work}",
        root=root,
        more="\n".join(
            [
                f"mount -t tmpfs tmpfs {root}/tmp",
                *_bound(root, binds),
                f"mount -o remount,ro {root}",
            ]
        ),
        command=shlex.join([*_as_user(image), *words]),
    )
    all_of_it = {**image.environ, **environ}
    apart = ["unshare", "--mount", "--propagation", "private"]
    if beside is None:
        command = [*apart, "--net", sys.executable, "-c", LOOPBACK]
    else:
        command = ["nsenter", "--target", str(beside.process.pid), "--net", *apart]
    with subprocess.Popen(
        [*command, "/bin/sh", "-c", script],
        env=all_of_it, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            yield Container(image, process, all_of_it)
        finally:
            process.kill()


def _as_user(image: Image) -> list[str]:
    user, group = image.user
    place = ["env", f"--chdir={image.stage.last('WORKDIR').text}"]
    return ["setpriv", f"--reuid={user}", f"--regid={group}", *NO_POWERS, "--", *place]


def _layer_with(image: Image, folder: Path, binds: Mapping[Path, str]) -> Path:
    """Return the image's layer, with a place for each thing that is mounted, as Docker makes it.

    Two containers cannot share one, so it is a copy, of links: nothing in it is ever written to.
    """
    layer = folder / "layer"
    subprocess.run(["cp", "--archive", "--link", image.layer, layer], check=True)
    for source, target in binds.items():
        place = layer / target.removesuffix(":ro").strip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            place.mkdir(exist_ok=True)
        else:
            place.touch()
    return layer


def _bound(root: Path, binds: Mapping[Path, str]) -> Iterator[str]:
    for source, target in binds.items():
        place = f"{root}{target.removesuffix(':ro')}"
        yield f"mount --bind {source} {place}"
        if target.endswith(":ro"):
            yield f"mount -o remount,bind,ro {place}"
