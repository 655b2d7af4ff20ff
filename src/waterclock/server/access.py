"""Who may call what: the one place in which both APIs learn whether the node is secure, who asks,
and what they may do.

A node with a secure folder asks for credentials; a node without has one principal, ANYONE, and
nobody looks anything up. What an operation needs is declared beside it (`Needs`). What one request
needs are its `Demand`s, with the names that the request gives. Those that were met are a `Permit`,
which a call that goes on keeps: the folder is looked at every 250 ms, and when it has changed, or a
credential has expired, every open call whose permit does not stand any more is ended.

What both APIs need:

    publish     topics, now or later, and making them; redriving dead letters; sending to streams
    consume     a topic as a member of a group; answering, moving and forgetting that group;
                receiving from streams
    schedule    cancelling, rescheduling; recurrences, by the topic they are of
    read        messages of the past, dead letters, what is scheduled, groups, settings; replays and
                runs of jobs, by the topic they are of; on everything (`*`): the node itself and
                its metrics
    admin       changing and deleting topics; deleting streams; dropping dead letters; the rest

A recurrence or a replay that has a name is known by the topic it is of: who may not use that topic
is told no more than that the name is taken (`Demand.shown`).
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.model.errors import (
    BadInput,
    Forbidden,
    NotAuthenticated,
    QuotaExceeded,
    WaterclockError,
)
from waterclock.security.audit import Transport
from waterclock.security.authenticator import Authenticator
from waterclock.security.folder import SecureFolder, SecureState, folder_in_use
from waterclock.security.issuer import OutsideIssuer
from waterclock.security.principals import ANYONE, Principal, resource_text
from waterclock.security.quotas import Usage, UsageTable
from waterclock.security.rights import RightKind
from waterclock.security.tls import server_context
from waterclock.server.refusals import Refusals

if TYPE_CHECKING:
    from waterclock.server.audit import Audit

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""How often the folder is looked at. Shorter ends calls sooner after `secure revoke`."""
DENIALS = (NotAuthenticated, Forbidden, QuotaExceeded)
"""What counts as having been refused, and not as having failed."""
EXPIRE_LOOKS = 20
"""After so many looks open calls are asked whether their credential has expired."""

_SCHEME = "bearer "
_NONE_GIVEN = (
    "this node asks for a credential: send `Authorization: Bearer CREDENTIAL`, which "
    "`waterclock secure add` prints"
)


class Demand(NamedTuple):
    """A right that a request needs; what is not named is everything."""

    kind: RightKind
    topic: str | None = None
    stream: str | None = None
    group: str | None = None
    shown: str = ""
    """What a refusal speaks of, if not of the topic: its name is not for everyone."""

    def check(self, principal: Principal) -> None:
        """Raise Forbidden unless the principal has the right."""
        kind, topic, stream, group, shown = self
        if not principal.rights.allows(kind, topic=topic, stream=stream, group=group):
            shown = shown or resource_text(topic=topic, stream=stream, group=group)
            error = Forbidden(kind, shown, principal=principal.name)
            error.about = self
            raise error


class Permit(NamedTuple):
    """What a call was let in with; a call that goes on keeps it."""

    principal: Principal
    demands: tuple[Demand, ...] = ()


CALLER: ContextVar[Principal] = ContextVar("CALLER", default=ANYONE)
"""Who makes the call of gRPC that is worked on: for lists of what they may see, and for those who
pass it on to another node."""


class Asked(NamedTuple):
    """A call as the audit knows it: what was asked, from where, how, and by whom."""

    transport: Transport
    operation: str
    """The name of an HTTP operation, or service and method."""
    address: str
    principal: Principal | None = None
    """None if it is not known, or the error of a denial says it."""


class OpenCall:
    """A call that goes on. `end` is called, once, if it may not any more."""

    __slots__ = ("end", "permit")

    def __init__(self, permit: Permit, end: Callable[[WaterclockError], None]) -> None:
        self.permit = permit
        self.end = end


class Access:
    """Whom a node lets in. Make one with `open_access`; keep `run` running if it `is_secure`."""

    def __init__(
        self, clock: Clock, folder: SecureFolder | None = None, issuer: OutsideIssuer | None = None
    ) -> None:
        """Raises BadInput or StorageFailed if there is a folder that cannot be loaded."""
        self._clock = clock
        self._folder = folder
        self._issuer = issuer
        self._usage = UsageTable()
        self.refusals = Refusals()
        self._open: set[OpenCall] = set()
        self._state: SecureState | None = None
        self._authenticator: Authenticator | None = None
        self._context: ssl.SSLContext | None = None
        self._loading = asyncio.Lock()
        self.reloads = 0
        """How often the folder was loaded again: what was found before may not hold now."""
        self.failed_reloads = 0
        """How often it could not be."""
        self.on_reloaded: list[Callable[[], None]] = []
        """Called after that: certificates, rights and quotas may be others."""
        self.on_recheck: list[Callable[[], None]] = []
        """Called when open calls that are not `holding` should be asked again; see `still`."""
        self.audit: Audit | None = None
        """Where denials, and calls that change something, are noted; on a secure node always."""
        if folder is not None:
            self._state, self._context = _load(folder)
            self._authenticator = Authenticator(self._state, issuer)

    def __repr__(self) -> str:
        return f"<Access {self._authenticator!r}>" if self.is_secure else "<Access for anyone>"

    @property
    def is_secure(self) -> bool:
        """Whether the node speaks TLS and asks for credentials."""
        return self._folder is not None

    @property
    def folder(self) -> SecureFolder | None:
        """What it goes by; None: the node is not secure."""
        return self._folder

    @property
    def state(self) -> SecureState:
        """What the folder has: the node's certificate and key among them."""
        assert self._state is not None, "the node is not secure"
        return self._state

    @property
    def context(self) -> ssl.SSLContext:
        """The newest context for servers on Python's `ssl`."""
        assert self._context is not None, "the node is not secure"
        return self._context

    def now_ms(self) -> int:
        """Return the time of day, which credentials go by."""
        return self._clock.now_ms()

    def steady_ms(self) -> int:
        """Return the time that quotas go by: setting the wall clock stops no principal."""
        return self._clock.monotonic_ms()

    # Who asks

    def principal_of(self, authorization: str | None, common_name: str | None = None) -> Principal:
        """Return who asks: by the value of an Authorization header, or else by the common name of
        a certificate of our CA. Raises NotAuthenticated."""
        if self._authenticator is None:
            return ANYONE
        if authorization is not None:
            if authorization[: len(_SCHEME)].lower() != _SCHEME:
                raise NotAuthenticated("the scheme of Authorization must be Bearer")
            bearer = authorization[len(_SCHEME) :].strip()
            return self._authenticator.principal_of(bearer, self._clock.now_ms())
        if common_name is not None:
            return self._authenticator.principal_of_certificate(common_name)
        raise NotAuthenticated(_NONE_GIVEN)

    def usage_of(self, principal: Principal) -> Usage:
        """Return what a principal uses of its quotas; their time is `steady_ms`."""
        name, quotas = principal.name, principal.quotas
        known = self._usage.known(name, quotas)
        return known or self._usage.usage_of(name, quotas, self._clock.monotonic_ms())

    def denied(self, asked: Asked, error: WaterclockError | None) -> None:
        """Note that a call was refused, if that is why it failed."""
        if self.audit is not None and isinstance(error, DENIALS):
            self.audit.denied(asked, error)

    # Calls that go on

    @contextmanager
    def holding(self, permit: Permit, end: Callable[[WaterclockError], None]) -> Iterator[None]:
        """Have a call that goes on ended, by `end`, once its permit does not stand any more."""
        call = OpenCall(permit, end)
        self._open.add(call)
        try:
            yield
        finally:
            self._open.discard(call)

    def still(self, permit: Permit) -> None:
        """Raise NotAuthenticated or Forbidden unless a permit would be given again today."""
        principal = self.current(permit.principal)
        if principal is not permit.principal:
            for demand in permit.demands:
                demand.check(principal)

    def current(self, principal: Principal) -> Principal:
        """Return a principal as it is today; raises NotAuthenticated if it is none any more."""
        if self._authenticator is None:
            return principal
        return self._authenticator.current(principal, self._clock.now_ms())

    def recheck(self) -> None:
        """End every open call whose permit does not stand any more."""
        for call in tuple(self._open):
            try:
                self.still(call.permit)
            except (NotAuthenticated, Forbidden) as error:
                self._open.discard(call)
                call.end(error)
        for recheck in self.on_recheck:
            recheck()

    # The folder

    async def run(self) -> None:
        """Look at the folder, and at the keys of another issuer, until cancelled."""
        folder = self._folder
        assert folder is not None, "the node is not secure"
        looks = 0
        while True:
            await self._refresh_issuer()
            if await asyncio.to_thread(folder.changed):
                await self.reload()
            await asyncio.sleep(LOOK_S)
            looks += 1
            if looks % EXPIRE_LOOKS == 0:
                self.recheck()

    async def reload(self) -> bool:
        """Load the folder and go by it; False if it cannot be loaded: all stays as it was."""
        assert self._folder is not None, "the node is not secure"
        assert self._authenticator is not None
        async with self._loading:
            try:
                loaded = await asyncio.to_thread(_load, self._folder)
            except WaterclockError as error:
                self.failed_reloads += 1
                log.error("secure_folder_not_loaded folder=%s: %s", self._folder.path, error)
                return False
            before = self.state.principals.known
            self._state, self._context = loaded
            self._authenticator.reload(self._state)
        known = self._state.principals.known
        if self.audit is not None:
            self.audit.principals_changed(before, known)
        self._usage.forget(known.__contains__)
        self.reloads += 1
        log.info("secure_folder_loaded principals=%d", len(known))
        for reloaded in self.on_reloaded:
            reloaded()
        self.recheck()
        return True

    async def _refresh_issuer(self) -> None:
        issuer, now_ms = self._issuer, self._clock.now_ms()
        if issuer is None or not issuer.wants_refresh(now_ms):
            return
        try:
            await asyncio.to_thread(issuer.refresh, now_ms)
        except WaterclockError as error:
            log.warning("issuer_keys_not_loaded: %s", error)


def open_access(config: Config, clock: Clock) -> Access:
    """Return whom a node lets in: anyone, unless it has a secure folder.

    Raises BadConfig, BadInput or StorageFailed if that is missing or cannot be loaded: then nobody
    is let in.
    """
    folder = folder_in_use(config)
    if folder is None:
        return Access(clock)
    settings = config.security
    issuer = None
    if settings.issuer is not None:
        assert settings.jwks is not None
        assert settings.audience is not None
        issuer = OutsideIssuer(
            issuer=settings.issuer,
            jwks=settings.jwks,
            audience=settings.audience,
            claim=settings.claim,
        )
    return Access(clock, folder, issuer)


def permit_of(principal: Principal, demands: Iterable[Demand]) -> Permit:
    """Return the permit of a principal that has all these rights; raises Forbidden."""
    permit = Permit(principal, tuple(demands))
    for demand in permit.demands:
        demand.check(principal)
    return permit


def _load(folder: SecureFolder) -> tuple[SecureState, ssl.SSLContext]:
    """Return all of the folder, and a context with what it shows."""
    while True:
        state = folder.load()
        try:
            return state, server_context(folder.node_certificate, folder.node_key, folder.ca)
        except BadInput:
            if not folder.changed():  # it was not rotated meanwhile
                raise
