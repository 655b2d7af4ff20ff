"""The keys that all nodes of a cluster share: `cluster.json` in their secure folders.

    {"version": 1, "keys": [current, next, previous]}       32 random bytes each, in base64

The current key is used, all are believed. To rotate is to use the next one, to make another, and to
keep the one that was current: so every node believes what any other uses that is one rotation ahead
of it or behind, and nodes may read the new file at different moments, in any order. After a second
rotation the first key is believed by nobody.

Keys are never used themselves: for each purpose another is derived from them (HKDF, RFC 5869).
"""

import base64
import binascii
import json
import os
from typing import Final, NamedTuple

from waterclock.model.errors import BadInput

FILE: Final = "cluster.json"
KEY_BYTES: Final = 32
KEYS_MAX: Final = 8

GOSSIP: Final = b"waterclock gossip 1"
PEER_LINK: Final = b"waterclock peer link 1"
STREAM_TOKENS: Final = b"waterclock stream tokens 1"

_VERSION: Final = 1


class ClusterKeys(NamedTuple):
    """The keys, the one that is used first."""

    keys: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"<ClusterKeys of {len(self.keys)}>"

    @classmethod
    def make(cls) -> "ClusterKeys":
        """Return keys that nobody knows: one to use, and one for the first rotation."""
        return cls((os.urandom(KEY_BYTES), os.urandom(KEY_BYTES)))

    def rotated(self) -> "ClusterKeys":
        """Return the keys after one more rotation."""
        current, new = self.keys[0], os.urandom(KEY_BYTES)
        if len(self.keys) == 1:  # nobody has another yet: it can be used after the next rotation
            return ClusterKeys((current, new))
        return ClusterKeys((self.keys[1], new, current))

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """Return the keys for one purpose, the one to use first."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return tuple(
            HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(key)
            for key in self.keys
        )

    def encode(self) -> bytes:
        """Return the file."""
        keys = [base64.b64encode(key).decode() for key in self.keys]
        return json.dumps({"version": _VERSION, "keys": keys}, indent=2).encode() + b"\n"


def decode_cluster_keys(data: bytes) -> ClusterKeys:
    """Return what the file holds; raises BadInput."""
    try:
        found = json.loads(data)
        if found["version"] != _VERSION:
            raise ValueError
        keys = tuple(base64.b64decode(text, validate=True) for text in found["keys"])
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise BadInput(f"{FILE}: is not a file of keys, version {_VERSION}") from None
    if not 0 < len(keys) <= KEYS_MAX or any(len(key) != KEY_BYTES for key in keys):
        raise BadInput(f"{FILE}: must have 1 to {KEYS_MAX} keys of {KEY_BYTES} bytes")
    return ClusterKeys(keys)
