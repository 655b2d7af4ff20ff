"""The handshake: a leader and a worker prove to each other that they know the same secret. Pure.

    leader                                   worker
      AUTH challenge, its nonce      ──►
                                     ◄──       AUTH challenge, its nonce
                                     ◄──       AUTH proof  = HMAC(secret, worker, both nonces)
      AUTH proof = HMAC(secret,      ──►
        leader, both nonces)
                                     ◄──       HELLO, and all that follows

Both send their challenge at once, whoever dialled. The proof is an HMAC-SHA256 over the sender's
role and both nonces: one that was heard before, or that comes back to its sender, proves nothing.
The leader proves itself last, and only to a worker that has: a stranger learns nothing from it.
Proofs are compared in constant time.

It says who is there when a connection begins. Whoever can change what is on the way needs no
secret: against that there is TLS.
"""

from enum import Enum
from hmac import compare_digest, digest

from waterclock.dispatch.frames import AUTH_BYTES, Auth, Token, encode_auth
from waterclock.model.errors import NotAuthenticated

_SCOPE = b"waterclock dispatch 1"


class Role(Enum):
    """Which end of a connection proves itself."""

    LEADER = b"leader"
    WORKER = b"worker"


class Handshake:
    """One end of one connection. `nonce` is AUTH_BYTES random bytes that are used once."""

    def __init__(self, secret: bytes, role: Role, *, nonce: bytes) -> None:
        assert len(nonce) == AUTH_BYTES
        self._secret = secret
        self._role = role
        self._nonce = nonce
        self._their_nonce: bytes | None = None
        self.is_done = False
        """Whether the other side has proved itself."""

    def __repr__(self) -> str:
        return f"<Handshake of a {self._role.name.lower()}{', done' if self.is_done else ''}>"

    def begin(self) -> bytes:
        """Return the first frame to send."""
        return encode_auth(self._nonce, is_proof=False)

    def heard(self, auth: Auth | Token) -> bytes:
        """Return what to answer, which may be nothing. Raises NotAuthenticated: hang up."""
        if isinstance(auth, Token):
            raise NotAuthenticated("there is a secret here, and no credential is asked for")
        if not auth.is_proof:
            if self._their_nonce is not None:
                raise NotAuthenticated("a second challenge")
            self._their_nonce = auth.data
            return self._proof() if self._role is Role.WORKER else b""
        if self._their_nonce is None:
            raise NotAuthenticated("a proof before the challenge")
        other = Role.LEADER if self._role is Role.WORKER else Role.WORKER
        if self.is_done or not compare_digest(auth.data, self._digest(other)):
            raise NotAuthenticated("it does not know the secret")
        self.is_done = True
        return self._proof() if self._role is Role.LEADER else b""

    def _proof(self) -> bytes:
        return encode_auth(self._digest(self._role), is_proof=True)

    def _digest(self, role: Role) -> bytes:
        assert self._their_nonce is not None
        nonces = (self._nonce, self._their_nonce)
        leader, worker = nonces if self._role is Role.LEADER else reversed(nonces)
        return digest(self._secret, b"%b %b %b%b" % (_SCOPE, role.value, leader, worker), "sha256")
