"""Files of Compose as they are started: which program each service runs, and what it sees."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.deploy.container import Image, volume

FOLDER = Path(__file__).parents[2] / "deploy"
ONE_NODE, CLUSTER = "compose.yml", "compose.cluster.yml"


class Mount(NamedTuple):
    """A line of `volumes`."""

    source: str
    target: str
    mode: str


def content(file: str) -> dict[str, Any]:
    """Return what a file says, anchors and merges resolved."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / file).read_text())
    return found


def services(file: str) -> dict[str, dict[str, Any]]:
    """Return the services of a file."""
    found: dict[str, dict[str, Any]] = content(file)["services"]
    return found


def mounts(service: dict[str, Any]) -> list[Mount]:
    """Return what a service mounts."""
    return [
        Mount(*([*line.split(":"), ""] if line.count(":") == 1 else line.split(":")))
        for line in service["volumes"]
    ]


def commands(file: str) -> dict[str, list[str]]:
    """Return what the services run that are of the image of deploy/Dockerfile."""
    ours = {name: it for name, it in services(file).items() if it["image"] == "waterclock"}
    return {name: it["command"] for name, it in ours.items()}


class Project:
    """The volumes of one `docker compose up`; each is made when it is first mounted."""

    def __init__(self, image: Image, folder: Path, file: str) -> None:
        self._image = image
        self._folder = folder
        self._services = services(file)

    def addresses(self) -> dict[str, str]:
        """Return where each service is. They share one loopback here, and nodes one port: so those
        that are several have an address each."""
        nodes = [name for name in self._services if name.startswith("node-")]
        return {
            name: f"127.0.0.{1 + nodes.index(name) if name in nodes else 1}"
            for name in ("localhost", *self._services)
        }

    def arguments(self, name: str) -> dict[str, Any]:
        """Return with what `container` runs a service."""
        service, addresses = self._services[name], self.addresses()
        binds = {self._place(it): f"{it.target}:{it.mode}".rstrip(":") for it in mounts(service)}
        hosts = self._folder / "hosts"
        # Services find each other by name.
        hosts.write_text("".join(f"{where} {each}\n" for each, where in addresses.items()))
        environ = service.get("environment", {})
        if name.startswith("node-"):
            environ = {**environ, "WATERCLOCK_SERVER__HOST": addresses[name]}
        return {
            "folder": self._folder / name,
            "binds": {**binds, hosts: "/etc/hosts:ro"},
            "environ": environ,
            "entrypoint": service.get("entrypoint", ()),
        }

    def _place(self, mount: Mount) -> Path:
        if mount.source.startswith("."):
            return (FOLDER / mount.source).resolve()
        folder = self._folder / f"volume-{mount.source}"
        return folder if folder.exists() else volume(self._image, mount.target, folder)
