"""Having a node read its configuration again over HTTP, where nobody can send it a signal.

POST /node/reload    what SIGHUP does, and the answer says what came of it
"""

import msgspec

from waterclock.security.rights import Needs
from waterclock.server.http.messages import Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.reload import Reloader


class ReloadedSettings(msgspec.Struct, rename="camel"):
    """What has changed, by the names of settings."""

    changed: list[str]
    """Hold from now on."""
    needs_restart: list[str]
    """Were changed as well, and hold from the next start on."""


def reload_operations(reloader: Reloader) -> list[Operation]:
    """Return the part of the table for it."""

    def reload(_: Request) -> Response:
        found = reloader.reload()
        return json(200, ReloadedSettings(list(found.changed), list(found.needs_restart)))

    return [
        Operation(
            "POST", "/node/reload", reload, "reloadNode",
            "Read the configuration, certificates and principals again.",
            {200: ResponseSpec("They were read; if they are wrong, nothing changes.",
                               ReloadedSettings)},
            needs=Needs("admin"),
        )
    ]  # fmt: skip
