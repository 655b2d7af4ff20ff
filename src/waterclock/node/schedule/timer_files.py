"""The checkpoint of a partition's timers on disk. Nothing is lost with it but time."""

import logging
import threading

from waterclock.model.errors import StorageError
from waterclock.schedule.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from waterclock.storage.folders.folder import Folder, write_whole

NAME = "timers"

log = logging.getLogger(__name__)


class TimerFiles:
    """The folder of a partition's saved timers."""

    def __init__(self, folder: Folder) -> None:
        try:
            folder.lock()
        except BaseException:
            folder.close()
            raise
        self._folder = folder
        self._mutex = threading.Lock()

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint; tell whether that could be done. May run on a thread."""
        data = encode_checkpoint(checkpoint)
        try:
            with self._mutex:
                write_whole(self._folder, NAME, [data])
                self._folder.sync()
        except StorageError as error:
            log.warning("timers_not_saved reason=%s", error)
            return False
        return True

    def load(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is no whole one that can be read."""
        try:
            if NAME not in self._folder.names():
                return None
            file = self._folder.open(NAME)
            checkpoint = decode_checkpoint(file.view(0, file.size()))
        except StorageError as error:
            log.warning("timers_not_read reason=%s", error)
            return None
        file.close()
        return checkpoint

    def close(self) -> None:
        """Let go of the folder, once nobody writes to it."""
        with self._mutex:
            self._folder.close()
