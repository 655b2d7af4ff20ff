"""Tokens: who asks, signed. A JWT (RFC 7519) of ours is Ed25519 and nothing else.

The algorithm is pinned before a key is chosen, so a token cannot choose how it is verified: `none`
and HMAC with the public key are refused as any other text is. A token says who, and never what
they may do. The time is an argument; an error says why a token is no good and repeats none of it.
"""

import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from waterclock.model.errors import BadInput, NotAuthenticated

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from jwt import PyJWK, PyJWS

ALGORITHM = "EdDSA"
ISSUER = "waterclock"
TOKEN_ID_BYTES = 16
KID_CHARS_MAX = 128
CLOCKS_DIFFER_S = 60
"""How much earlier than its `nbf` a token is taken: who makes it may be on another machine."""

_MS = 1_000


class Claims(msgspec.Struct, frozen=True):
    """What a token of ours says."""

    iss: str
    sub: str
    jti: str
    iat: int
    nbf: int
    exp: int


class SigningKey:
    """A key that signs tokens; its `kid` begins with the time it was made, so the greatest is the
    newest."""

    __slots__ = ("_key", "kid")

    def __init__(self, kid: str, key: "Ed25519PrivateKey") -> None:
        self.kid = kid
        self._key = key

    def __repr__(self) -> str:
        return f"<SigningKey {self.kid}>"

    @classmethod
    def make(cls, *, now_ms: int) -> "SigningKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        digest = sha256(key.public_key().public_bytes_raw()).hexdigest()
        return cls(f"{now_ms:013d}-{digest[:8]}", key)

    @classmethod
    def load(cls, kid: str, pem: bytes) -> "SigningKey":
        """Return a key that was kept; raises BadInput."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise BadInput(f"signing key {kid} is not a key of Ed25519 in PEM")
        return cls(kid, key)

    @property
    def public(self) -> "Ed25519PublicKey":
        return self._key.public_key()

    def pem(self) -> bytes:
        """Return it as it is kept: a secret."""
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, *, principal: str, token_id: str, now_ms: int, expires_ms: int) -> str:
        """Return a token for a principal."""
        now_s, expires_s = now_ms // _MS, expires_ms // _MS
        claims = Claims(ISSUER, principal, token_id, iat=now_s, nbf=now_s, exp=expires_s)
        headers = {"kid": self.kid}
        return _jws().encode(msgspec.json.encode(claims), self._key, ALGORITHM, headers)


def new_token_id() -> str:
    """Return an id that nobody guesses."""
    return secrets.token_hex(TOKEN_ID_BYTES)


def verify(token: str, keys: Mapping[str, "Ed25519PublicKey"], *, now_ms: int) -> Claims:
    """Return what a token of ours says, if its signature and its times are good.

    You must look up if its id still stands under its principal. Raises NotAuthenticated.
    """
    key = keys.get(key_id_of(token))
    if key is None:
        raise NotAuthenticated("the credential is signed with a key that this node does not know")
    payload = verified_payload(token, key, [ALGORITHM])
    try:
        claims = msgspec.json.decode(payload, type=Claims)
    except (msgspec.MsgspecError, ValueError):
        raise NotAuthenticated("the credential is signed and does not say who it is for") from None
    if claims.iss != ISSUER:
        raise NotAuthenticated("the credential is of another issuer")
    check_times(nbf=claims.nbf, exp=claims.exp, now_ms=now_ms)
    return claims


def key_id_of(token: str) -> str:
    """Return which key a token says it is signed with, unverified; raises NotAuthenticated."""
    from jwt import InvalidTokenError

    try:
        kid = _jws().get_unverified_header(token).get("kid")
    except (InvalidTokenError, UnicodeEncodeError):
        kid = None
    if not isinstance(kid, str) or not 0 < len(kid) <= KID_CHARS_MAX:
        raise NotAuthenticated("the credential does not name the key that it is signed with")
    return kid


def verified_payload(
    token: str, key: "Ed25519PublicKey | PyJWK", algorithms: Sequence[str]
) -> bytes:
    """Return what is signed, if it is, with this key and one of these algorithms.

    Raises NotAuthenticated.
    """
    from jwt import InvalidAlgorithmError, InvalidTokenError

    try:
        payload: bytes = _jws().decode(token, key, algorithms=algorithms)
    except InvalidAlgorithmError:
        raise NotAuthenticated("the credential is signed with another algorithm") from None
    except InvalidTokenError:
        raise NotAuthenticated("the signature of the credential is wrong") from None
    return payload


def check_times(*, nbf: float, exp: float, now_ms: int) -> None:
    """Raise NotAuthenticated unless it is valid now; times are in seconds."""
    if now_ms >= exp * _MS:
        raise NotAuthenticated("the credential has expired")
    if now_ms < (nbf - CLOCKS_DIFFER_S) * _MS:
        raise NotAuthenticated("the credential is not valid yet")


@cache
def _jws() -> "PyJWS":
    from jwt import PyJWS

    return PyJWS()
