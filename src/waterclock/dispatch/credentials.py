"""Workers that are known by the credential of a node: one line of text, as everywhere else.

The dispatcher has the secure folder of the node (`dispatch.secure`): it listens by TLS 1.3 with the
certificate in it, and a worker must show, as its first frame, the token of a principal that may
consume the source. The worker knows the leader by the CA in its credential, so it sends the token
to nobody else. The folder is looked at as a node does: who is revoked is hung up on, and a rotated
certificate is shown from then on.
"""

import asyncio
import logging
import ssl
import time
from pathlib import Path

from waterclock.dispatch.frames import Auth, Token, encode_token
from waterclock.model.errors import BadInput, Forbidden, NotAuthenticated, WaterclockError
from waterclock.security.authenticator import Authenticator
from waterclock.security.folder import SecureFolder, SecureState
from waterclock.security.principals import Principal
from waterclock.security.tls import server_context, show

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""How often the folder is looked at. Shorter hangs up sooner after `secure revoke`."""


class ShownToken:
    """A worker's end of a connection: TLS has said who the leader is."""

    is_done = True

    def __init__(self, token: str) -> None:
        self._token = token

    def __repr__(self) -> str:
        return "<ShownToken>"

    def begin(self) -> bytes:
        """Return the first frame to send."""
        return encode_token(self._token)

    def heard(self, step: Auth | Token) -> bytes:
        """Raise NotAuthenticated: a leader proves nothing else to us."""
        raise NotAuthenticated("the leader asks for the secret, and there is a credential here")


class AskedToken:
    """A leader's end of a connection."""

    def __init__(self, known: "KnownWorkers") -> None:
        self._known = known
        self._principal: Principal | None = None

    def __repr__(self) -> str:
        return f"<AskedToken of {self._principal.name if self._principal else 'nobody yet'}>"

    @property
    def is_done(self) -> bool:
        """Whether a worker is there that may be."""
        return self._principal is not None

    def begin(self) -> bytes:
        """Return nothing: the worker speaks first."""
        return b""

    def heard(self, step: Auth | Token) -> bytes:
        """Learn who the worker is. Raises NotAuthenticated: hang up."""
        if not isinstance(step, Token) or self._principal is not None:
            raise NotAuthenticated("a credential is asked for here, once and nothing else")
        self._principal = self._known.principal_of(step.text)
        return b""

    def recheck(self) -> None:
        """Raise NotAuthenticated if the worker would not be let in any more."""
        if self._principal is not None:
            self._principal = self._known.current(self._principal)


class KnownWorkers:
    """The principals of a secure folder that may consume the source of a dispatcher."""

    def __init__(self, folder: Path, *, source: str, group: str) -> None:
        """Raises BadInput or StorageFailed if the folder cannot be loaded."""
        self._folder = SecureFolder(folder)
        self._source = source
        self._group = group
        state, self.context = self._load()
        self._authenticator = Authenticator(state)

    def __repr__(self) -> str:
        return f"<KnownWorkers {self._authenticator!r}>"

    def handshake(self) -> AskedToken:
        return AskedToken(self)

    def principal_of(self, token: str) -> Principal:
        """Return whose token this is; raises NotAuthenticated, also if it may not consume."""
        return self._allowed(self._authenticator.principal_of(token, _now_ms()))

    def current(self, principal: Principal) -> Principal:
        """Return a principal as it is now; raises NotAuthenticated if it may not be here."""
        return self._allowed(self._authenticator.current(principal, _now_ms()))

    async def look(self) -> None:
        """Go by the folder, if it has changed; what cannot be loaded changes nothing."""
        if not await asyncio.to_thread(self._folder.changed):
            return
        try:
            state, _ = await asyncio.to_thread(self._load)
            # Into the context that the port has: handshakes from now on show it.
            show(self.context, self._folder.node_certificate, self._folder.node_key)
        except WaterclockError as error:
            log.error("secure_folder_not_loaded folder=%s: %s", self._folder.path, error)
            return
        self._authenticator.reload(state)
        log.info("secure_folder_loaded principals=%d", len(state.principals.known))

    def _load(self) -> tuple[SecureState, ssl.SSLContext]:
        folder = self._folder
        while True:
            state = folder.load()
            try:
                return state, server_context(folder.node_certificate, folder.node_key)
            except BadInput:
                if not folder.changed():  # it was not rotated meanwhile
                    raise

    def _allowed(self, principal: Principal) -> Principal:
        try:
            principal.demand("consume", topic=self._source, group=self._group)
        except Forbidden as error:
            raise NotAuthenticated(str(error)) from None
        return principal


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
