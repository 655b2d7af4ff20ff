"""A replica's log that was here and is not: its folder was removed, or its disk restored without.

What was flushed in it counted, and may be what makes a majority. An empty log in its place must
not pass for it: a note says so, durably and before there is a log, so that no start forgets it.
The log is faulty until a copy of the leader's is put in its place.
"""

from typing import Final

from waterclock.log.recovery import Damage
from waterclock.model.ids import Offset
from waterclock.storage.folders.folder import TEMPORARY, Folder, write_whole

NAME: Final = "lost"
_TEXT = b"The log that was here is gone; this one begins with a copy of its leader's.\n"


def note_if_lost(folder: Folder) -> bool:
    """Note that a log is gone which should be in a folder; tell if it is."""
    if not {*folder.names()} <= {"LOCK", NAME + TEMPORARY}:
        return False  # the opening judges what is there
    write_whole(folder, NAME, [_TEXT])
    folder.sync()
    return True


def damage_of_lost() -> Damage:
    """Return what is wrong with the empty log that stands in the place of a lost one."""
    reason = "this replica's log was here and is gone: its folder was removed"
    return Damage(0, 0, Offset(0), Offset(0), reason)
