"""deploy/compose.yml as it is started: which program each service runs, and what it sees."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.deploy.container import Image, volume

FOLDER = Path(__file__).parents[2] / "deploy"
TEXT = (FOLDER / "compose.yml").read_text()


class Mount(NamedTuple):
    """A line of `volumes`."""

    source: str
    target: str
    mode: str


def services() -> dict[str, dict[str, Any]]:
    """Return the services, anchors and merges resolved."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
    return found


def mounts(service: dict[str, Any]) -> list[Mount]:
    """Return what a service mounts."""
    return [
        Mount(*([*line.split(":"), ""] if line.count(":") == 1 else line.split(":")))
        for line in service["volumes"]
    ]


def ours() -> dict[str, dict[str, Any]]:
    """Return the services that run in the image of deploy/Dockerfile."""
    return {name: it for name, it in services().items() if it["image"] == "waterclock"}


class Project:
    """The volumes of one `docker compose up`; each is made when it is first mounted."""

    def __init__(self, image: Image, folder: Path) -> None:
        self._image = image
        self._folder = folder

    def arguments(self, name: str) -> dict[str, Any]:
        """Return with what `container` runs a service."""
        service = services()[name]
        binds = {self._place(it): f"{it.target}:{it.mode}".rstrip(":") for it in mounts(service)}
        hosts = self._folder / "hosts"
        # Services find each other by name; here they share one loopback.
        hosts.write_text("".join(f"127.0.0.1 {each}\n" for each in ("localhost", *services())))
        return {
            "folder": self._folder / name,
            "binds": {**binds, hosts: "/etc/hosts:ro"},
            "environ": service.get("environment", {}),
            "entrypoint": service.get("entrypoint", ()),
        }

    def _place(self, mount: Mount) -> Path:
        if mount.source.startswith("."):
            return (FOLDER / mount.source).resolve()
        folder = self._folder / f"volume-{mount.source}"
        return folder if folder.exists() else volume(self._image, mount.target, folder)
