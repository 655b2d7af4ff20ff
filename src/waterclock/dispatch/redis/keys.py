"""The names of keys in Redis, and which slot of a cluster a key is in.

A cluster runs a script only if all its keys are in one slot. The slot is the CRC-16 of the key, or
of the first `{...}` in it that holds something (Redis Cluster specification, "Hash tags"). So the
keys of a group of dispatchers all bear the tag `{prefix}`, and those that stand beside a stream of
the user's are named by `beside`. `docs/formats/dispatch_keys.md` draws what they hold.
"""

from binascii import crc_hqx
from dataclasses import dataclass

from waterclock.model.errors import BadInput

SLOTS = 16_384


def hash_tag(key: str) -> str:
    """Return the part of a key that decides its slot."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            return key[start + 1 : end]
    return key


def slot_of(key: str) -> int:
    return crc_hqx(hash_tag(key).encode(), 0) % SLOTS


def beside(key: str, name: str) -> str:
    """Return a key named after another one and in the same slot."""
    if hash_tag(key) != key:
        return f"{key}:{name}"
    if "}" in key:
        raise BadInput(f"key {key!r}: a closing brace without a tag before it cannot be used")
    return f"{{{key}}}:{name}"


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
