"""Who may be at the other end of a connection between a leader and a worker: what the settings
`secret`, `certificate`, `key` and `ca` mean; and the same for Redis.

With a secret both ends prove that they know it (`handshake.py`). With a certificate and its key the
side that listens speaks TLS 1.3 and nothing older; with `ca` the other side must show a certificate
that it signed, and must be the host that was dialled. Each does without the other.
"""

import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from waterclock.dispatch.config import DispatcherConfig, WorkerConfig
from waterclock.dispatch.credentials import AskedToken, KnownWorkers, ShownToken
from waterclock.dispatch.frames import AUTH_BYTES
from waterclock.dispatch.handshake import Handshake, Role
from waterclock.model.errors import BadConfig, BadInput, NotAuthenticated, WaterclockError
from waterclock.security.credential import Credential
from waterclock.security.tls import client_context, server_context, show

SECRET_BYTES_MIN = 16
TLS_S_MAX = 5.0
"""How long a connection may take to agree on TLS, and to end it: it holds memory meanwhile."""


class AccessSettings(Protocol):
    """The settings of a dispatcher or a worker, as far as they matter here."""

    @property
    def section(self) -> str: ...
    @property
    def secret(self) -> str: ...
    @property
    def certificate(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def ca(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Access:
    """How connections begin, at one end."""

    role: Role
    secret: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    """Shown to the leader, by a worker that has a credential."""
    known: KnownWorkers | None = None
    """Who may work, at a dispatcher that asks for credentials."""
    listens: ssl.SSLContext | None = None
    """For connections that come; None is plain TCP."""
    dials: ssl.SSLContext | None = None
    """For connections we make."""

    def handshake(self) -> Handshake | ShownToken | AskedToken | None:
        """Return a new handshake; None: nobody need prove anything."""
        if self.token:
            return ShownToken(self.token)
        if self.known is not None:
            return self.known.handshake()
        if not self.secret:
            return None
        return Handshake(self.secret, self.role, nonce=secrets.token_bytes(AUTH_BYTES))


def tls_options(access: Access) -> dict[str, Any]:
    """Return what a loop's `create_server` is told of TLS."""
    if access.listens is None:
        return {}
    return {
        "ssl": access.listens,
        "ssl_handshake_timeout": TLS_S_MAX,
        "ssl_shutdown_timeout": TLS_S_MAX,
    }


def access_of(config: AccessSettings, role: Role) -> Access:
    """Read what the settings name. Raises BadConfig."""
    certificate, key = Path(config.certificate), Path(config.key)
    ca = Path(config.ca) if config.ca else None
    listens = dials = None
    try:
        if config.certificate:
            listens = server_context(certificate, key, ca)
            if ca is not None:
                listens.verify_mode = ssl.CERT_REQUIRED
        if ca is not None:
            pair = (certificate, key) if config.certificate else (None, None)
            dials = client_context(ca.read_bytes(), *pair)
    except BadInput as bad:
        raise BadConfig(f"{config.section}.certificate", str(bad)) from None
    except OSError as error:
        raise BadConfig(f"{config.section}.ca", f"{ca}: {error.strerror or error}") from None
    return Access(role, _secret(config), listens=listens, dials=dials)


def access_of_dispatcher(config: DispatcherConfig) -> Access:
    """Read what the settings name, the secure folder too. Raises BadConfig."""
    if not config.secure:
        return access_of(config, Role.LEADER)
    try:
        known = KnownWorkers(Path(config.secure), source=config.source, group=config.group)
    except WaterclockError as error:
        raise BadConfig("dispatch.secure", str(error)) from None
    return Access(Role.LEADER, known=known, listens=known.context)


def access_of_worker(config: WorkerConfig) -> Access:
    """Read what the settings name, the credential too. Raises BadConfig."""
    if not config.credential:
        return access_of(config, Role.WORKER)
    try:
        credential = Credential.read(config.credential)
        dials = client_context(credential.ca_pem)
    except (BadInput, NotAuthenticated) as error:
        raise BadConfig("worker.credential", str(error)) from None
    return Access(Role.WORKER, token=credential.token, dials=dials)


class RedisSettings(Protocol):
    """The settings of a dispatcher or a worker that say how to speak to Redis."""

    @property
    def section(self) -> str: ...
    @property
    def redis_ca(self) -> str: ...
    @property
    def redis_certificate(self) -> str: ...
    @property
    def redis_key(self) -> str: ...


def redis_tls(config: RedisSettings) -> ssl.SSLContext | None:
    """Return how to speak to Redis servers of `rediss://`; None: as the system does. Raises
    BadConfig."""
    if not (config.redis_ca or config.redis_certificate):
        return None
    try:
        # Also TLS 1.2: the server is not ours.
        context = ssl.create_default_context(cafile=config.redis_ca or None)
    except OSError as error:
        reason = "is no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise BadConfig(f"{config.section}.redis_ca", f"{config.redis_ca}: {reason}") from None
    if config.redis_certificate:
        try:
            show(context, Path(config.redis_certificate), Path(config.redis_key))
        except BadInput as bad:
            raise BadConfig(f"{config.section}.redis_certificate", str(bad)) from None
    return context


def _secret(config: AccessSettings) -> bytes:
    name, text = f"{config.section}.secret", config.secret
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is no text"
            raise BadConfig(name, f"{config.secret[1:]}: {reason}") from None
    if text and len(text.encode()) < SECRET_BYTES_MIN:
        # Whoever heard a handshake can try secrets as fast as they like.
        raise BadConfig(name, f"is too short: at least {SECRET_BYTES_MIN} random characters")
    return text.encode()
