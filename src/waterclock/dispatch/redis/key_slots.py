"""Which slot of a Redis Cluster a key is in, and how to name another key beside it.

A cluster runs a script only if all its keys are in one slot. The slot is the CRC-16 of the key, or
of the first `{...}` in it that holds something (Redis Cluster specification, "Hash tags").
"""

from binascii import crc_hqx

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
    """Return the slot of a key."""
    return crc_hqx(hash_tag(key).encode(), 0) % SLOTS


def beside(key: str, name: str) -> str:
    """Return a key named after another one and in the same slot."""
    if hash_tag(key) != key:
        return f"{key}:{name}"
    if "}" in key:
        raise BadInput(f"key {key!r}: a closing brace without a tag before it cannot be used")
    return f"{{{key}}}:{name}"
