"""The authenticator: from a token, or a certificate, to the principal who asks.

A token is verified once: then its SHA-256 leads to its principal until it ends or something in the
secure folder changes. The token itself is not kept. Rights are those of the folder as it is now, so
a change holds with the next call; calls that go on ask again with `current`.
"""

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from waterclock.model.errors import NotAuthenticated
from waterclock.security.credential import token_of
from waterclock.security.principals import KnownPrincipal, Principal
from waterclock.security.tokens import key_id_of, verify

if TYPE_CHECKING:
    from waterclock.security.folder import SecureState
    from waterclock.security.issuer import OutsideIssuer

CACHE_MAX = 10_000
"""Tokens remembered; more and all are verified again."""
REVOKED = "the credential was revoked, or replaced by another"


class Authenticator:
    """Knows everyone in a secure folder, and those another issuer vouches for."""

    def __init__(self, state: "SecureState", issuer: "OutsideIssuer | None" = None) -> None:
        self._state = state
        self._issuer = issuer
        self._cache: dict[bytes, Principal] = {}

    def __repr__(self) -> str:
        return f"<Authenticator of {self._state.principals!r}, {len(self._cache)} tokens cached>"

    def reload(self, state: "SecureState") -> None:
        """Go by what the folder has now."""
        self._state = state
        self._cache.clear()

    def principal_of(self, bearer: str, now_ms: int) -> Principal:
        """Return who sends a credential, or its token alone; raises NotAuthenticated."""
        digest = sha256(bearer.encode(errors="surrogatepass")).digest()
        found = self._cache.get(digest)
        if found is not None and found.expires_ms is not None and now_ms < found.expires_ms:
            return found
        self._cache.pop(digest, None)
        found = self._verified(token_of(bearer), now_ms)
        if len(self._cache) >= CACHE_MAX:
            self._cache.clear()
        self._cache[digest] = found
        return found

    def principal_of_certificate(self, common_name: str) -> Principal:
        """Return who shows a certificate that our CA has signed; raises NotAuthenticated."""
        known = self._known(common_name)
        return Principal(known.name, known.rights, known.quotas)

    def current(self, principal: Principal, now_ms: int) -> Principal:
        """Return a principal as it is now, for a call that goes on; raises NotAuthenticated if it
        would not be let in any more."""
        if principal.expires_ms is not None and now_ms >= principal.expires_ms:
            raise NotAuthenticated("the credential has expired")
        known = self._known(principal.name)
        if principal.token_id and principal.token_id not in known.tokens:
            raise NotAuthenticated(REVOKED)
        if principal.rights is known.rights and principal.quotas is known.quotas:
            return principal
        return replace(principal, rights=known.rights, quotas=known.quotas)

    def _verified(self, token: str, now_ms: int) -> Principal:
        keys = self._state.verifying_keys
        if self._issuer is not None and key_id_of(token) not in keys:
            outside = self._issuer.verify(token, now_ms)
            known = self._known(outside.principal)
            if not known.is_outside:
                raise NotAuthenticated("the token's principal is not one that its issuer may name")
            return Principal(known.name, known.rights, known.quotas, "", outside.expires_ms)
        claims = verify(token, keys, now_ms=now_ms)
        known = self._known(claims.sub)
        if claims.jti not in known.tokens:
            raise NotAuthenticated(REVOKED)
        return Principal(known.name, known.rights, known.quotas, claims.jti, claims.exp * 1_000)

    def _known(self, name: str) -> KnownPrincipal:
        known = self._state.principals.known.get(name)
        if known is None:
            raise NotAuthenticated(REVOKED)
        return known
