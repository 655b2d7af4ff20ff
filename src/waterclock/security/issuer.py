"""Another issuer of tokens, such as a company's sign-on: its keys (JWKS, RFC 7517) come from a URL
or a file, and one claim of its tokens names a principal of ours.

Only signatures with a public key count; a key of HMAC in the set is left out, for who can verify
with it can forge. The audience must be ours: tokens made for other services are refused. `refresh`
blocks, so it runs in a thread; it takes a whole set of keys or keeps the one it had. A token with a
key that is not known asks for a refresh, at most one every half minute.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import msgspec

from waterclock.model.errors import BadConfig, NotAuthenticated, Unavailable
from waterclock.security.tokens import check_times, key_id_of, verified_payload

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS = frozenset(
    {"EdDSA", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"}
)
REFRESH_EVERY_MS = 600_000
"""How old keys may get. Shorter stops a key sooner that its issuer has withdrawn."""
REFRESH_AGAIN_MS = 30_000
"""How long a key that is not known waits for the next refresh: strangers invent such keys."""
FETCH_S = 10.0
SET_BYTES_MAX = 1 << 20
SECONDS_MAX = 1 << 40
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class OutsideClaims(NamedTuple):
    """What matters of a token that another issuer has signed."""

    principal: str
    expires_ms: int


class OutsideIssuer:
    """Verifies the tokens of one other issuer."""

    def __init__(self, *, issuer: str, jwks: str, audience: str, claim: str) -> None:
        """Raises BadConfig if its keys would come over a plain connection from elsewhere."""
        url = urlsplit(jwks)
        self._is_url = url.scheme in ("http", "https")
        if url.scheme == "http" and url.hostname not in _LOOPBACK:
            raise BadConfig("security.jwks", "must begin with https://, or be a file")
        self._issuer = issuer
        self._jwks = jwks
        self._audience = audience
        self._claim = claim
        self._keys: dict[str, PyJWK] = {}
        self._tried_ms: int | None = None
        self._is_asked_for = False

    def __repr__(self) -> str:
        return f"<OutsideIssuer {self._issuer}, {len(self._keys)} keys>"

    def wants_refresh(self, now_ms: int) -> bool:
        """Say if it is time to `refresh`."""
        if self._tried_ms is None:
            return True
        pause_ms = REFRESH_AGAIN_MS if self._is_asked_for else REFRESH_EVERY_MS
        return now_ms - self._tried_ms >= pause_ms

    def refresh(self, now_ms: int) -> None:
        """Fetch the keys anew. It blocks; raises Unavailable, and keeps those it has."""
        self._tried_ms = now_ms
        self._is_asked_for = False
        self._keys = _keys_in(self._fetched())

    def verify(self, token: str, now_ms: int) -> OutsideClaims:
        """Return whom a token names; raises NotAuthenticated."""
        key = self._keys.get(key_id_of(token))
        if key is None:
            self._is_asked_for = True
            raise NotAuthenticated("the token is signed with a key that its issuer does not have")
        payload = verified_payload(token, key, [key.algorithm_name])
        try:
            claims = msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError):
            raise NotAuthenticated("the token does not hold claims") from None
        return self._checked(claims, now_ms)

    def _checked(self, claims: dict[str, Any], now_ms: int) -> OutsideClaims:
        if claims.get("iss") != self._issuer:
            raise NotAuthenticated("the token is of another issuer")
        audience = claims.get("aud")
        if self._audience not in (audience if isinstance(audience, list) else [audience]):
            raise NotAuthenticated("the token is for another audience")
        expires_s, from_s = _seconds(claims.get("exp")), _seconds(claims.get("nbf", 0))
        if expires_s is None or from_s is None:
            raise NotAuthenticated("the token does not say when it ends")
        check_times(nbf=from_s, exp=expires_s, now_ms=now_ms)
        principal = claims.get(self._claim)
        if not isinstance(principal, str) or not principal:
            raise NotAuthenticated(f"the token has no claim {self._claim}")
        return OutsideClaims(principal, int(expires_s * 1_000))

    def _fetched(self) -> bytes:
        try:
            data = _get(self._jwks) if self._is_url else Path(self._jwks).read_bytes()
        except (OSError, ValueError) as error:
            if isinstance(error, HTTPError):
                error.close()  # it holds the connection
            reason = error.reason if isinstance(error, URLError) else error
            raise Unavailable(f"keys of {self._issuer} from {self._jwks}: {reason}") from None
        if len(data) > SET_BYTES_MAX:
            raise Unavailable(f"keys of {self._issuer}: more than {SET_BYTES_MAX} bytes")
        return data


def _seconds(value: object) -> float | None:
    """Return a claim that is a time, which other issuers may give with fractions."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if 0 <= value < SECONDS_MAX else None


def _keys_in(data: bytes) -> "dict[str, PyJWK]":
    """Return the keys of a set that can verify; those that are of no use are left out."""
    from jwt import PyJWKSet, PyJWTError

    try:
        keys = PyJWKSet.from_dict(json.loads(data))
    except (ValueError, AttributeError, RecursionError, PyJWTError):
        raise Unavailable("what is there is no set of keys (JWKS)") from None
    found = {
        key.key_id: key
        for key in keys
        if key.key_id and key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")
    }
    if not found:
        raise Unavailable("no key of the set (JWKS) can verify a signature and has a kid")
    return found


def _get(url: str) -> bytes:
    """Return what is at a URL; a redirect is refused, for it could lead to a plain connection."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class Refuse(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    with build_opener(Refuse).open(url, timeout=FETCH_S) as answer:
        data: bytes = answer.read(SET_BYTES_MAX + 1)
    return data
