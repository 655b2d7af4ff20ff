"""Two programs prove to each other over a connection that they know the same secret. Pure.

    first                                    last
      its nonce                      ──►
                                     ◄──       its nonce
      proof = HMAC(secret, first,    ──►
        both nonces)
                                     ◄──       proof = HMAC(secret, last, both nonces)

Both send their nonce at once. A proof is an HMAC-SHA256 over the scope, the sender's role and both
nonces: one that was heard before, or that comes back to its sender, proves nothing. Who proves
itself last does so only to one that has: a stranger learns nothing from it. Proofs are compared in
constant time.

While secrets are rotated, who proves itself last may know several: it answers with the one that the
other side has used.

It says who is there when a connection begins. Whoever can change what is on the way needs no
secret: against that there is TLS.
"""

from hmac import compare_digest, digest
from typing import Final

from waterclock.model.errors import NotAuthenticated

NONCE_BYTES: Final = 32


class SharedSecret:
    """One end of one connection. `roles` are the names of who proves itself first and last;
    `nonce` is NONCE_BYTES random bytes that are used once; `others` are secrets that are as good if
    the other side proves itself first."""

    def __init__(
        self,
        secret: bytes,
        scope: bytes,
        roles: tuple[bytes, bytes],
        *,
        is_first: bool,
        nonce: bytes,
        others: tuple[bytes, ...] = (),
    ) -> None:
        assert len(nonce) == NONCE_BYTES
        self.nonce = nonce
        self._secrets = (secret,) if is_first else (secret, *others)
        self._scope = scope
        self._roles = roles
        self._is_first = is_first
        self._their_nonce: bytes | None = None
        self.is_done = False
        """Whether the other side has proved itself."""

    def __repr__(self) -> str:
        role = self._roles[not self._is_first].decode()
        return f"<SharedSecret of the {role}{', done' if self.is_done else ''}>"

    def challenged(self, nonce: bytes) -> bytes | None:
        """Take the other's nonce; return the proof to send now, if it is our turn."""
        if self._their_nonce is not None:
            raise NotAuthenticated("a second challenge")
        self._their_nonce = nonce
        return self._digest(self._secrets[0], is_first=True) if self._is_first else None

    def proved(self, proof: bytes) -> bytes | None:
        """Take the other's proof; return ours, if it is our turn. NotAuthenticated: hang up."""
        if self._their_nonce is None:
            raise NotAuthenticated("a proof before the challenge")
        known = [each for each in self._secrets if self._is_proof(proof, each)]
        if self.is_done or not known:
            raise NotAuthenticated("it does not know the secret")
        self.is_done = True
        return None if self._is_first else self._digest(known[0], is_first=False)

    def _is_proof(self, proof: bytes, secret: bytes) -> bool:
        return compare_digest(proof, self._digest(secret, is_first=not self._is_first))

    def _digest(self, secret: bytes, *, is_first: bool) -> bytes:
        assert self._their_nonce is not None
        mine, theirs = self.nonce, self._their_nonce
        last, first = (theirs, mine) if self._is_first else (mine, theirs)
        role = self._roles[not is_first]
        return digest(secret, b"%b %b %b%b" % (self._scope, role, last, first), "sha256")
