"""Which logs a folder holds: it is one, or it is a node's data with one for each partition."""

from pathlib import Path

from waterclock.model.errors import BadInput

SHOWN_MAX = 5


def logs_in(folder: Path) -> list[Path]:
    """Return the folder itself if it is a log, or could be; else the logs below it, in order."""
    if not folder.is_dir() or any(folder.glob("*.seg")):
        return [folder]
    return sorted({file.parent for file in folder.rglob("*.seg")}) or [folder]


def one_log(folder: Path) -> Path:
    """Return the folder if it is a log; raise BadInput if it holds some, and say which."""
    found = logs_in(folder)
    if found == [folder]:
        return folder
    shown = ", ".join(map(str, found[:SHOWN_MAX]))
    more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    raise BadInput(f"{folder} is no log, but holds some: name one of {shown}{more}")
