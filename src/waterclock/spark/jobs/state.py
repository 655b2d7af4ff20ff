"""Where jobs keep how far they are, if nobody says where: a folder of the user's that lasts."""

import os
from pathlib import Path


def state_folder() -> Path:
    """Return the folder; it is not made here."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "waterclock"
