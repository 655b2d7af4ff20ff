"""The time zone of this machine: what somebody means who types `18:00`.

Times go to the client as text, which is in UTC unless it names a zone; so the zone is written
behind it. Python knows the offset of the machine's zone and not its name, which a rule needs that
holds for months, so the name is read where the system keeps it.
"""

import os
import re
from pathlib import Path

LOCALTIME = Path("/etc/localtime")
TIMEZONE = Path("/etc/timezone")
_NO_CLOCK = re.compile(r"earliest|latest|now|(\+|-|in ).*|.* (ago|from now)", re.ASCII)


def here(text: str) -> str:
    """Return a time as the client takes it: in this machine's zone, unless it names another."""
    from waterclock.model.errors import BadInput
    from waterclock.schedule.calendar import zone_of
    from waterclock.schedule.when import names_zone

    zone = local_zone()
    if zone == "UTC" or names_zone(text) or _NO_CLOCK.fullmatch(text.strip().lower()):
        return text
    try:
        zone_of(zone)
    except BadInput as error:
        raise BadInput(
            f"{text!r}: the time zone of this machine, {zone!r}, is none that is known by name: "
            f"write one behind it, as in '{text} Europe/Berlin'"
        ) from error
    return f"{text} [{zone}]"


def local_zone() -> str:
    """Return the name of this machine's time zone; UTC if it has none."""
    name = os.environ.get("TZ")
    if name is not None:
        return _after_folder(name.removeprefix(":")) or "UTC"
    try:
        return _after_folder(os.readlink(LOCALTIME))
    except OSError:  # none, or a file of its own
        pass
    try:
        return TIMEZONE.read_text().strip() or "UTC"
    except OSError:
        return "UTC"


def _after_folder(path: str) -> str:
    """Return the name of a zone whose file it is: `/usr/share/zoneinfo/Europe/Berlin`."""
    name = path.rpartition("zoneinfo/")[2].removeprefix("posix/")
    return "UTC" if name in ("Etc/UTC", "UCT", "Universal", "Zulu", "GMT") else name
