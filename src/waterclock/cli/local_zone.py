"""The time zone of this machine: what `18:00` on the command line means.

Times go to the client as text, which is in UTC unless it names a zone; so the zone is written
behind it. Python knows the offset of the machine's zone and not its name, which a rule needs that
holds for months, so the name is read where the system keeps it. A zone without a name (a `TZ` such
as `<+03>-3`, a copied file) will do if its clocks are never changed.
"""

import os
import re
import time
from pathlib import Path

LOCALTIME = Path("/etc/localtime")
TIMEZONE = Path("/etc/timezone")
_POSIX = re.compile(r"(<[A-Za-z0-9+-]+>|[A-Za-z]{3,})[+-]?[0-9].*", re.ASCII)
_HOUR_S = 3_600
_WEEK_S = 7 * 24 * _HOUR_S


def here(text: str) -> str:
    """Return a time as the client takes it: in this machine's zone, unless it names another."""
    from waterclock.model.errors import BadInput
    from waterclock.schedule.calendar import zone_of
    from waterclock.schedule.when import needs_zone

    if text.strip().lower() in ("earliest", "latest") or not needs_zone(text):
        return text
    zone = local_zone()
    if zone == "UTC":
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
    if name is None:
        return _of_system()
    name = name.removeprefix(":")
    if name == str(LOCALTIME):
        return _of_system()
    if name.startswith("/") and "zoneinfo/" not in name:
        name = os.path.realpath(name)
    # EST5EDT is of this form, and a name: it is known by that.
    if _POSIX.fullmatch(name) and not _is_known(name):
        return _unchanging() or name
    return _after_folder(name) or "UTC"


def _of_system() -> str:
    if LOCALTIME.is_symlink():
        path = os.readlink(LOCALTIME)
        return _after_folder(path if "zoneinfo/" in path else os.path.realpath(LOCALTIME))
    try:
        return TIMEZONE.read_text().strip() or "UTC"
    except OSError:
        pass
    return _unchanging() or str(LOCALTIME) if LOCALTIME.exists() else "UTC"


def _is_known(name: str) -> bool:
    from waterclock.model.errors import BadInput
    from waterclock.schedule.calendar import zone_of

    try:
        zone_of(name)
    except BadInput:
        return False
    return True


def _unchanging() -> str:
    """Return a name for the machine's offset if it is whole hours all year; else nothing."""
    now_s = int(time.time())
    weeks = range(now_s, now_s + 54 * _WEEK_S, _WEEK_S)
    offsets = {time.localtime(one).tm_gmtoff for one in weeks}
    hours, rest = divmod(offsets.pop(), _HOUR_S)
    if offsets or rest:
        return ""
    # In these names, west is positive.
    return f"Etc/GMT{-hours:+d}" if hours else "UTC"


def _after_folder(path: str) -> str:
    """Return the name of a zone whose file it is: `/usr/share/zoneinfo/Europe/Berlin`."""
    name = path.rpartition("zoneinfo/")[2].removeprefix("posix/")
    return "UTC" if name in ("Etc/UTC", "UCT", "Universal", "Zulu", "GMT") else name
