"""The keys of a cluster: the first seals, all open. Rotation is add, use, remove, on every node.

    | version 1 | nonce 12 | ciphertext | tag 16 |        AES-GCM

Who rotates adds the new key everywhere, then has every node use it, then removes the old one: at
each moment every node can open what any other seals. Nonces are random, 96 bits, and come from
whoever seals; at a hundred packets a second a key is good for centuries before two meet (NIST
SP 800-38D allows 2^32 random ones: over a year; rotate yearly).
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from waterclock.cluster.gossip.errors import BadKey, BadPacket

VERSION = 1
VERSION_PADDED = 0
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = 1 + NONCE_BYTES + TAG_BYTES
KEY_BYTES = (16, 24, 32)
_BLOCK_BYTES = 16


class Keyring:
    """Seals with its first key and opens with any."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._ciphers: dict[bytes, AESGCM] = {}
        for key in keys:
            self.add(key)
        if not self._ciphers:
            raise BadKey("a keyring needs a key")

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._ciphers)}>"

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Self:
        """Return a keyring of keys in base64, as Serf's `-encrypt` takes them."""
        try:
            return cls([base64.b64decode(text, validate=True) for text in texts])
        except binascii.Error as error:
            raise BadKey("a key is not in base64") from error

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The keys, the one that seals first."""
        return tuple(self._ciphers)

    def add(self, key: bytes) -> None:
        """Open with this key too; the first stays the first."""
        if len(key) not in KEY_BYTES:
            raise BadKey(f"a key has 16, 24 or 32 bytes, not {len(key)}")
        self._ciphers.setdefault(key, AESGCM(key))

    def use(self, key: bytes) -> None:
        """Seal with this key from now on; raise BadKey if it was not added."""
        if key not in self._ciphers:
            raise BadKey("add a key to the keyring before it is used")
        cipher = self._ciphers.pop(key)
        self._ciphers = {key: cipher, **self._ciphers}

    def remove(self, key: bytes) -> None:
        """Open with this key no more; raise BadKey for the one that seals."""
        if key not in self._ciphers:
            raise BadKey("the key is not in the keyring")
        if next(iter(self._ciphers)) == key:
            raise BadKey("use another key before this one is removed: it seals")
        del self._ciphers[key]

    def seal(self, plain: bytes, *, nonce: bytes, extra: bytes | None = None) -> bytes:
        """Return it sealed. `nonce` is 12 random bytes, never used before with this key."""
        assert len(nonce) == NONCE_BYTES
        cipher = next(iter(self._ciphers.values()))
        return b"%c%b%b" % (VERSION, nonce, cipher.encrypt(nonce, plain, extra))

    def open(self, sealed: bytes, *, extra: bytes | None = None) -> bytes:
        """Return what was sealed; raise BadPacket if no key opens it."""
        if len(sealed) < OVERHEAD_BYTES:
            raise BadPacket("too short to be sealed")
        if sealed[0] not in (VERSION, VERSION_PADDED):
            raise BadPacket("not sealed, or by a version that we do not know")
        nonce, body = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        for cipher in self._ciphers.values():
            try:
                plain = cipher.decrypt(nonce, body, extra)
            except InvalidTag:
                continue
            return plain if sealed[0] == VERSION else _unpadded(plain)
        raise BadPacket("sealed with a key that we do not have, or damaged")


def _unpadded(plain: bytes) -> bytes:
    count = plain[-1] if plain else 0
    if not 1 <= count <= _BLOCK_BYTES or count > len(plain):
        raise BadPacket("sealed data is padded wrongly")
    return plain[:-count]
