"""Values that only their readers can read: AES-256-GCM for each value, with a key that nodes never
have (docs/formats/encrypted_value.md).

    magic F5 57 45 | version 1 | key id, 4 | nonce, 24 | ciphertext | tag, 16

The cipher is XAES-256-GCM (C2SP): each 12 bytes of a nonce make a key of their own, which the other
12 are the nonce under. AES-GCM alone lets one key have 2^32 random nonces, which a busy topic uses
up within hours. One set of keys draws the first half once and counts the second.

A value is bound to its topic and its key: whoever stores it cannot pass it off as another's. The
dead letters of a topic count as the topic, so a message may fail, be looked at and be sent again.
A value of another topic must be decrypted and published anew. Tombstones stay as they are, or
compaction would not know them; keys, headers and times are not encrypted.

The newest key encrypts, all decrypt. What cannot be decrypted is raised when it is asked for.
"""

import hashlib
import hmac
import os
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from waterclock.model.errors import BadInput, CannotDecrypt
from waterclock.model.names import DEAD_LETTERS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"\xf5WE"
"""No text in UTF-8 begins so."""
VERSION = 1
KEY_BYTES = 32
KEY_ID_BYTES = 4
HALF_BYTES = 12
TAG_BYTES = 16
_PREFIX_BYTES = len(MAGIC) + 1 + KEY_ID_BYTES
_HEAD_BYTES = _PREFIX_BYTES + 2 * HALF_BYTES
OVERHEAD_BYTES = _HEAD_BYTES + TAG_BYTES
"""How much longer an encrypted value is."""
KEYS_MAX = 1_000
DERIVED_MAX = 1_000
"""Keys made of a nonce that are kept: one for each writer whose values are read."""

Value = bytes | None


class Keys:
    """Keys by which values are encrypted and decrypted, the newest last.

    With `allow_plaintext`, a value that is not encrypted is taken as it is: for a topic that has
    some from before. Whoever writes to the topic can then pass off anything.
    """

    def __init__(self, keys: Sequence[bytes], *, allow_plaintext: bool = False) -> None:
        if not 0 < len(keys) <= KEYS_MAX:
            raise BadInput(f"keys: there must be from 1 to {KEYS_MAX}, not {len(keys)}")
        for number, key in enumerate(keys, 1):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise BadInput(f"keys: key {number} is not {KEY_BYTES} bytes")
        self._by_id = {_id_of(key): key for key in keys}
        if len(self._by_id) < len(keys):
            raise BadInput("keys: two are the same, or share an id: leave one out")
        self._newest = _id_of(keys[-1])
        self._oldest_key = keys[0]
        self._allow_plaintext = allow_plaintext
        self._parts = (tuple(keys), allow_plaintext)
        self._derived: dict[bytes, AESGCM] = {}
        self._half = os.urandom(HALF_BYTES)
        self._pid = os.getpid()
        # From anywhere: two that drew the same half would have to meet here, too.
        self._counts = count(int.from_bytes(os.urandom(HALF_BYTES), "big"))

    def __repr__(self) -> str:
        return f"<Keys {', '.join(id_.hex() for id_ in self._by_id)}, newest last>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    def __reduce__(self) -> tuple[object, ...]:
        # A copy in another process must not count on from where this one is.
        return _rebuilt, self._parts

    @classmethod
    def from_file(cls, path: str | Path, *, allow_plaintext: bool = False) -> "Keys":
        """Return the keys of a file: one on each line, 32 bytes in base64, the newest last; what
        begins with # is left out. Raises BadInput, which shows no key."""
        where = repr(str(path))  # on one line, whatever is in it
        try:
            text = Path(path).read_text(encoding="ascii")
        except UnicodeDecodeError:
            raise BadInput(f"keys file {where}: it is no text") from None
        except (OSError, ValueError) as error:  # the latter of what cannot be a path
            reason = getattr(error, "strerror", None) or "is no path"
            raise BadInput(f"keys file {where}: {reason}") from None
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
        found = []
        for number, line in lines:
            if line and not line.startswith("#"):
                found.append(_key_of(line, f"keys file {where}, line {number}"))
        try:
            return cls(found, allow_plaintext=allow_plaintext)
        except BadInput as error:
            raise BadInput(f"keys file {where}: {error}") from None

    def encrypt(self, topic: str, key: Value, value: Value) -> Value:
        """Return a value for a message of a topic under a key, as nobody without a key reads it."""
        if value is None:
            return None
        if self._pid != os.getpid():  # a fork, which would count as its parent does
            self._pid, self._half = os.getpid(), os.urandom(HALF_BYTES)
        prefix = MAGIC + bytes([VERSION]) + self._newest
        number = next(self._counts) % (1 << 8 * HALF_BYTES)
        nonce = number.to_bytes(HALF_BYTES, "big")
        cipher = self._cipher(self._newest, self._half)
        sealed = cipher.encrypt(nonce, value, _context(prefix, topic, key))
        return b"%b%b%b%b" % (prefix, self._half, nonce, sealed)

    def decrypt(self, topic: str, key: Value, value: Value) -> Value:
        """Return the value of a message as it was given to be encrypted; raises CannotDecrypt."""
        if value is None:
            return None
        if not value.startswith(MAGIC):
            if self._allow_plaintext:
                return value
            raise CannotDecrypt(
                f"a value of topic {topic!r} is not encrypted: allow_plaintext would take it"
            )
        if len(value) < OVERHEAD_BYTES:
            raise CannotDecrypt(f"an encrypted value of topic {topic!r} is cut off")
        if value[len(MAGIC)] != VERSION:
            raise CannotDecrypt(
                f"a value of topic {topic!r} is encrypted by version {value[len(MAGIC)]}; this "
                f"client knows {VERSION}"
            )
        return self._opened(topic, key, value)

    def _opened(self, topic: str, key: Value, value: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        prefix, key_id = value[:_PREFIX_BYTES], value[_PREFIX_BYTES - KEY_ID_BYTES : _PREFIX_BYTES]
        if key_id not in self._by_id:
            raise CannotDecrypt(
                f"a value of topic {topic!r} is encrypted with key {key_id.hex()}, which is not "
                "among the keys of this client"
            )
        half = value[_PREFIX_BYTES : _PREFIX_BYTES + HALF_BYTES]
        nonce = value[_PREFIX_BYTES + HALF_BYTES : _HEAD_BYTES]
        cipher = self._cipher(key_id, half)
        try:
            return cipher.decrypt(nonce, value[_HEAD_BYTES:], _context(prefix, topic, key))
        except InvalidTag:
            raise CannotDecrypt(
                f"a value of topic {topic!r} was changed, or is of another topic or key"
            ) from None

    def encrypt_all(
        self, topic: str, keys: Iterable[Value], values: Iterable[Value]
    ) -> list[Value]:
        """Return the values of many messages of a topic, encrypted."""
        pairs = zip(keys, values, strict=True)
        return [self.encrypt(topic, key, value) for key, value in pairs]

    def decrypt_all(
        self, topic: str, keys: Iterable[Value], values: Iterable[Value]
    ) -> list[Value]:
        """Return the values of many messages of a topic, decrypted; raises CannotDecrypt."""
        pairs = zip(keys, values, strict=True)
        return [self.decrypt(topic, key, value) for key, value in pairs]

    def blinded(self, text: bytes) -> bytes:
        """Return what stands for a text and does not tell it; the same while the oldest key is."""
        return hmac.digest(self._oldest_key, b"waterclock name" + text, "sha256")

    def _cipher(self, key_id: bytes, half: bytes) -> "AESGCM":
        found = self._derived.get(key_id + half)
        if found is None:
            if len(self._derived) >= DERIVED_MAX:
                self._derived.clear()
            found = self._derived[key_id + half] = _derived(self._by_id[key_id], half)
        return found


def _rebuilt(keys: Sequence[bytes], allow_plaintext: bool) -> Keys:
    return Keys(keys, allow_plaintext=allow_plaintext)


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"waterclock key id" + key).digest()[:KEY_ID_BYTES]


def _key_of(line: str, where: str) -> bytes:
    try:
        key = b64decode(line, validate=True)
    except (NotBase64, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise BadInput(
            f"{where}: not {KEY_BYTES} bytes in base64, as `openssl rand -base64 {KEY_BYTES}` "
            "prints them"
        )
    return key


def _context(prefix: bytes, topic: str, key: Value) -> bytes:
    """Return what a value is bound to: how it is encrypted, its topic and its key."""
    name = topic.removesuffix(DEAD_LETTERS).encode()
    of_key = b"\x00" if key is None else b"\x01" + key
    return b"%b%b%b%b" % (prefix, len(name).to_bytes(2, "big"), name, of_key)


def _derived(key: bytes, half: bytes) -> "AESGCM":
    """Return the cipher of one half of a nonce: NIST SP 800-108r1 in counter mode, with CMAC, for a
    message of one block (C2SP XAES-256-GCM)."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    blocks = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    first = int.from_bytes(blocks.update(bytes(16)), "big")
    subkey = (first << 1) & ((1 << 128) - 1)
    if first >> 127:
        subkey ^= 0x87
    made = b""
    for number in (1, 2):
        block = b"\x00" + bytes([number]) + b"X\x00" + half
        mixed = int.from_bytes(block, "big") ^ subkey
        made += blocks.update(mixed.to_bytes(16, "big"))
    return AESGCM(made)
