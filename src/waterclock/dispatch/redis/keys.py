"""The names of a dispatcher group's own keys in Redis, drawn in `docs/formats/dispatch_keys.md`.

All of them bear the tag `{prefix}`, so that in a cluster they are in one slot and one script may
touch them together. The keys of the user's streams, and those that stand beside them, are named by
`key_slots.beside`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one group."""

    prefix: str

    def _key(self, name: str) -> str:
        return f"{{{self.prefix}}}:{name}"

    @property
    def lock(self) -> str:
        """The lease: a `LockValue` as JSON, with an expiry."""
        return self._key("lock")

    @property
    def epoch(self) -> str:
        """The highest epoch that was given out; every fenced script compares with it."""
        return self._key("epoch")

    @property
    def markers(self) -> str:
        """The channel on which the leader publishes its markers."""
        return self._key("markers")

    @property
    def batches(self) -> str:
        """A hash: the bytes of each stored batch by its id."""
        return self._key("batches")

    @property
    def pending(self) -> str:
        """A sorted set: the ids of stored batches, oldest first."""
        return self._key("pending")

    @property
    def position(self) -> str:
        """The `Position` behind all that is stored, as bytes."""
        return self._key("position")

    @property
    def done(self) -> str:
        """A hash: the uuids of messages of stored batches that are dead letters already."""
        return self._key("done")

    @property
    def dead(self) -> str:
        """The dead stream of the pub/sub source."""
        return self._key("dead")
