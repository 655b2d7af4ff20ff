"""Who asks over a connection of a secure node, read from the head of each request.

A request without a credential that is good, or far over a quota, is refused here, before its body
is read. If it has none, the connection goes on, and the operation decides: health is for everyone.
A client that sends the same credential again, as all do, is looked up once for each change of the
secure folder.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from waterclock.model.errors import NotAuthenticated, QuotaExceeded, WaterclockError
from waterclock.security.principals import ANYONE, Principal
from waterclock.security.quotas import Usage
from waterclock.security.rights import Rights
from waterclock.server.access import Access

AHEAD_MS = 250
"""How far ahead of its time a body may be taken; who is further ahead is refused."""
NOBODY = Principal("nobody", Rights())
"""Who asks without a credential that is good."""


class Asker(NamedTuple):
    """Who sent a request."""

    principal: Principal = ANYONE
    refusal: WaterclockError | None = None
    """Why all but what is open to everyone is refused."""
    reloads: int = 0
    """Of the secure folder, when it was asked who this is."""
    is_last: bool = False
    """The connection is one too many, and ends with the answer."""
    address: str = ""
    """Where they are, for the audit."""


class Head(NamedTuple):
    """What a head says of who asks and of what follows."""

    bearer: bytes | None
    body_bytes: int
    """Announced; 0 if there is no body, or nobody knows how long."""
    is_chunked: bool

    @property
    def has_body(self) -> bool:
        return self.is_chunked or self.body_bytes > 0


class Identity:
    """Who is on the other side of one connection. You must `close` it."""

    __slots__ = (
        "_access",
        "_address",
        "_asker",
        "_bearer",
        "_common_name",
        "_is_bounded",
        "_is_link",
        "_usage",
        "owed_ms",
    )

    def __init__(
        self, access: Access, common_name: str | None, address: str = "", *, is_link: bool = False
    ) -> None:
        """`is_link` if it is one of the native protocol."""
        self._is_link = is_link
        self._access = access
        self._address = address
        self._common_name = common_name
        """Of the certificate that the client has shown, if it has."""
        self._bearer: bytes | None = None
        self._asker: Asker | None = None
        """Who asked last, with that bearer."""
        self._is_bounded = False
        """They have a quota of which each request takes something."""
        self._usage: Usage | None = None
        """Of whom the connection is counted for."""
        self.owed_ms = 0
        """How long to read nothing: so much was taken ahead of its time."""

    def __repr__(self) -> str:
        return f"<Identity {'nobody' if self._asker is None else self._asker.principal.name}>"

    def read(self, head: Head) -> Asker:
        """Say who sends a request, and count it against their quotas."""
        try:
            asker = self._known(head.bearer)
            if self._is_bounded:
                self._count(head)
        except (NotAuthenticated, QuotaExceeded) as error:
            is_uncounted = isinstance(error, QuotaExceeded) and self._usage is None
            return Asker(NOBODY, error, self._access.reloads, is_uncounted, self._address)
        return asker

    def count_body(self, asker: Asker, size: int) -> Asker:
        """Count a body of which the head did not say how long it is."""
        try:
            usage, now_ms = self._access.usage_of(asker.principal), self._access.steady_ms()
            self.owed_ms = usage.take_bytes(size, now_ms, ahead_ms=AHEAD_MS)
        except QuotaExceeded as error:
            return asker._replace(refusal=error)
        return asker

    def close(self) -> None:
        """Count the connection no more."""
        if self._usage is not None:
            self._usage.close_connection(is_link=self._is_link)
            self._usage = None

    def _known(self, bearer: bytes | None) -> Asker:
        access, known = self._access, self._asker
        if known is not None and bearer == self._bearer and known.reloads == access.reloads:
            expires_ms = known.principal.expires_ms
            if expires_ms is None or access.now_ms() < expires_ms:
                return known
        self._asker = None
        authorization = None if bearer is None else bearer.decode("latin-1")
        principal = access.principal_of(authorization, self._common_name)
        usage = access.usage_of(principal)
        if usage is not self._usage:
            self.close()
            usage.open_connection(is_link=self._is_link)
            self._usage = usage
        quotas = usage.quotas
        self._is_bounded = bool(quotas.bytes_per_s or quotas.requests_per_s)
        self._bearer = bearer
        self._asker = Asker(principal, None, access.reloads, address=self._address)
        return self._asker

    def _count(self, head: Head) -> None:
        assert self._usage is not None
        now_ms = self._access.steady_ms()
        self._usage.take_request(now_ms)
        if head.body_bytes:
            self.owed_ms = self._usage.take_bytes(head.body_bytes, now_ms, ahead_ms=AHEAD_MS)


def head_of(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Return what matters here of a head; of two credentials none counts."""
    bearer: bytes | None = None
    body_bytes, is_chunked = 0, False
    for name, value in headers:
        size = len(name)
        if size == 13 and name.lower() == b"authorization":
            bearer = value if bearer is None else b""
        elif size == 14 and name.lower() == b"content-length":
            body_bytes = int(value)
        elif size == 17 and name.lower() == b"transfer-encoding":
            is_chunked = True
    return Head(bearer, body_bytes, is_chunked)


def host_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of who is on the other side."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""
