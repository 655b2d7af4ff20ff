"""What the processes of one machine agreed on, on disk: a store, and the journal of its changes.

Nothing is answered before it is here, so that an epoch that was given out is given out no second
time, however the machine went down. The journal is written anew as a checkpoint when it is long.
"""

from typing import Final

from waterclock.cluster.coordinator.journal_frames import MAGIC, BadJournal, encode_frame, replay
from waterclock.cluster.coordinator.store import Changes, Checkpoint, Store
from waterclock.storage.folders.folder import TEMPORARY, File, Folder, write_whole

NAME: Final = "journal"
LONG_BYTES: Final = 1 << 20
"""Shorter ones are not written anew."""
GROWTH: Final = 4
"""By how much a journal is longer than its checkpoint before it is written anew."""


class Journal:
    """A journal and the store that it tells of. `save` and `rewrite` may run in a thread, one at a
    time."""

    def __init__(self, folder: Folder, *, now_ms: int) -> None:
        """Take up a folder, or begin one. Raises FolderInUse, or BadJournal if it is damaged."""
        folder.lock()
        self._folder = folder
        self._file: File | None = None
        self._end = self._checkpoint_bytes = 0
        try:
            names = folder.names()
            if NAME + TEMPORARY in names:
                folder.remove(NAME + TEMPORARY)
            if NAME in names:
                self.store = self._load(now_ms)
            else:
                self.store = Store()
                self.rewrite(self.store.checkpoint())
        except BaseException:
            folder.close()
            raise

    def __repr__(self) -> str:
        return f"<Journal {self._end} bytes, {self.store!r}>"

    @property
    def is_long(self) -> bool:
        """It is time to write it anew."""
        return self._end > max(LONG_BYTES, GROWTH * self._checkpoint_bytes)

    def save(self, changes: Changes) -> None:
        """Keep changes; they are durable on return. After StorageFull it may be tried again."""
        assert self._file is not None, "it is closed"
        frame = encode_frame(changes)
        self._file.write(self._end, [frame])
        self._file.sync()
        self._end += len(frame)

    def rewrite(self, checkpoint: Checkpoint) -> None:
        """Begin anew with all that there is."""
        parts = [MAGIC, encode_frame(checkpoint)]
        write_whole(self._folder, NAME, list(parts))
        self._folder.sync()
        if self._file is not None:
            self._file.close()
        self._file = self._folder.open(NAME)
        self._end = self._checkpoint_bytes = sum(map(len, parts))

    def close(self) -> None:
        """Let go of the folder."""
        self._file = None
        self._folder.close()

    def _load(self, now_ms: int) -> Store:
        self._file = self._folder.open(NAME)
        data = bytes(self._file.view(0, self._file.size()))
        try:
            store, self._end = replay(data, now_ms=now_ms)
        except BadJournal as error:
            raise BadJournal(
                error.position,
                f"what the processes agreed on (the file {NAME}) is damaged: {error.problem}",
            ) from error
        self._checkpoint_bytes = min(self._end, LONG_BYTES)
        if self._end < len(data):
            # Cut, or a later frame could be followed by what is left of this one.
            self._file.truncate(self._end)
            self._file.sync()
        return store
