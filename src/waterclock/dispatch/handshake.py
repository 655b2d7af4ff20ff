"""The handshake: a leader and a worker prove to each other that they know the same secret. Pure.

    leader                                   worker
      AUTH challenge, its nonce      ──►
                                     ◄──       AUTH challenge, its nonce
                                     ◄──       AUTH proof  = HMAC(secret, worker, both nonces)
      AUTH proof = HMAC(secret,      ──►
        leader, both nonces)
                                     ◄──       HELLO, and all that follows

Both send their challenge at once, whoever dialled. The leader proves itself last, and only to a
worker that has: a stranger learns nothing from it. What a proof is: `security/shared_secret.py`.
"""

from enum import Enum

from waterclock.dispatch.frames import Auth, Token, encode_auth
from waterclock.model.errors import NotAuthenticated
from waterclock.security.shared_secret import SharedSecret

_SCOPE = b"waterclock dispatch 1"


class Role(Enum):
    """Which end of a connection proves itself."""

    LEADER = b"leader"
    WORKER = b"worker"


class Handshake:
    """One end of one connection. `nonce` is AUTH_BYTES random bytes that are used once."""

    def __init__(self, secret: bytes, role: Role, *, nonce: bytes) -> None:
        self._role = role
        self._secret = SharedSecret(
            secret,
            _SCOPE,
            (Role.WORKER.value, Role.LEADER.value),
            is_first=role is Role.WORKER,
            nonce=nonce,
        )

    def __repr__(self) -> str:
        return f"<Handshake of a {self._role.name.lower()}{', done' if self.is_done else ''}>"

    @property
    def is_done(self) -> bool:
        """Whether the other side has proved itself."""
        return self._secret.is_done

    def begin(self) -> bytes:
        """Return the first frame to send."""
        return encode_auth(self._secret.nonce, is_proof=False)

    def heard(self, auth: Auth | Token) -> bytes:
        """Return what to answer, which may be nothing. Raises NotAuthenticated: hang up."""
        if isinstance(auth, Token):
            raise NotAuthenticated("there is a secret here, and no credential is asked for")
        heard = self._secret.proved if auth.is_proof else self._secret.challenged
        proof = heard(auth.data)
        return b"" if proof is None else encode_auth(proof, is_proof=True)
