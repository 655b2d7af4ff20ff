"""The guard of a secure node's gRPC calls: who asks, what a request needs, what they may use.

A call is let in before its request is read: by the token in its metadata, or by the certificate of
its connection. Each request that names something is checked against the table in `needs.py`. A call
that goes on is held by `Access`, which ends it once a right that it was let in with is gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from grpc.aio import ServicerContext

from waterclock.model.errors import (
    CapacityReached,
    Forbidden,
    NotAuthenticated,
    QuotaExceeded,
    WaterclockError,
)
from waterclock.node.node import Node
from waterclock.security.principals import Principal, resource_text
from waterclock.security.quotas import CONNECTIONS, Usage
from waterclock.security.rights import RightKind
from waterclock.server.access import Access, Asked, Demand, Permit, permit_of
from waterclock.server.counts import Counts
from waterclock.server.grpc.backlog import NATIVE
from waterclock.server.grpc.needs import METHODS
from waterclock.server.statuses import ours

if TYPE_CHECKING:
    from waterclock.server.audit import Audit

T = TypeVar("T")
Context = ServicerContext[Any, Any]
Field = Callable[[Any], str | None]
TopicOf = Callable[[str], str | None]

AUTHORIZATION = "authorization"
COMMON_NAME = "x509_common_name"

HELD_BACK_MS_MAX = 1_000
HELD_BACK_MAX = 100
"""Refused calls of a principal that wait for their time: they count as calls of the node."""


class Guard:
    """Guards all calls of one node."""

    def __init__(self, access: Access, node: Node, counts: Counts) -> None:
        self.access = access
        self.counts = counts
        self.topics_of = topics_of(node)
        self._calls_of: dict[tuple[str, str], int] = {}
        """Open calls by principal and connection, of principals with a quota of connections."""
        self._held_back: dict[str, int] = {}
        """How many refused calls wait, by principal."""

    def __repr__(self) -> str:
        return f"<Guard of {self.access!r}>"

    def method(self, name: str, kind: type[Message], *, reads: bool) -> "GuardedMethod":
        """Return the guard of one method."""
        return GuardedMethod(self, name, cast(Descriptor, kind.DESCRIPTOR), reads=reads)

    def entered(self, context: Context) -> "Entrance":
        """Let a call in, for as long as inside; raises NotAuthenticated or QuotaExceeded."""
        return Entrance(self, context)

    def count_call(self, usage: Usage, connection: tuple[str, str]) -> None:
        """Count a call of a principal with a quota of connections; raises QuotaExceeded."""
        if connection not in self._calls_of:
            usage.open_connection()
            self._calls_of[connection] = 0
        self._calls_of[connection] += 1

    def uncount_call(self, usage: Usage, connection: tuple[str, str]) -> None:
        """Give back what `count_call` counted."""
        self._calls_of[connection] -= 1
        if not self._calls_of[connection]:
            del self._calls_of[connection]
            usage.close_connection()

    async def held_back(self, error: QuotaExceeded, context: Context) -> QuotaExceeded:
        """Return a refusal when its time is over: who asks again at once costs the others nothing.

        Of a principal that has many calls held back already, and of a call that would not live to
        hear of it, the refusal is returned at once.
        """
        wait_ms = min(error.retry_after_ms, HELD_BACK_MS_MAX)
        left_s, held = context.time_remaining(), self._held_back.get(error.principal, 0)
        is_late = left_s is not None and left_s * 1_000 <= 2 * wait_ms
        if error.field == CONNECTIONS or held >= HELD_BACK_MAX or is_late:
            return error
        self._held_back[error.principal] = held + 1
        try:
            await asyncio.sleep((wait_ms + 1) / 1_000)  # a timer may be a moment early
        finally:
            self._held_back[error.principal] -= 1
            if not self._held_back[error.principal]:
                del self._held_back[error.principal]
        again_ms = max(1, error.retry_after_ms - wait_ms)
        return QuotaExceeded(
            error.field, error.limit, principal=error.principal, retry_after_ms=again_ms
        )

    def denied(self, method: str, context: Context, error: Exception) -> None:
        """Count and note that a call was refused, if that is why it failed."""
        self.access.refusals.note(error, "grpc")
        self.access.denied(Asked("grpc", method, host_of(context.peer())), ours(error))

    def principal_of(self, context: Context) -> Principal:
        """Return who calls; raises NotAuthenticated."""
        given = [v for key, v in context.invocation_metadata() or () if key == AUTHORIZATION]
        if len(given) > 1:
            raise NotAuthenticated("a call may have one credential")
        if given:
            text = given[0] if isinstance(given[0], str) else given[0].decode("latin-1")
            return self.access.principal_of(text)
        names = list(context.auth_context().get(COMMON_NAME, ()))
        return self.access.principal_of(None, names[0].decode() if len(names) == 1 else None)


class Entrance:
    """A call that is let in while inside. A class: a generator costs each call far more."""

    __slots__ = ("_connection", "_context", "_guard", "_usage")

    def __init__(self, guard: Guard, context: Context) -> None:
        self._guard = guard
        self._context = context
        self._usage: Usage | None = None
        """If connections are counted."""
        self._connection = ("", "")

    def __enter__(self) -> Principal:
        guard = self._guard
        access, principal = guard.access, guard.principal_of(self._context)
        usage = access.usage_of(principal)
        quotas = usage.quotas
        if quotas.requests_per_s is not None:
            usage.take_request(access.steady_ms())
        peer = self._context.peer() if quotas.connections is not None else NATIVE
        if not peer.startswith(NATIVE):  # that was counted when it logged in
            self._connection = principal.name, peer
            guard.count_call(usage, self._connection)
            self._usage = usage
        return principal

    def __exit__(self, *_: object) -> None:
        if self._usage is not None:
            self._guard.uncount_call(self._usage, self._connection)


class GuardedMethod:
    """What a method needs, made ready to be asked of its requests."""

    def __init__(self, guard: Guard, name: str, request: Descriptor, *, reads: bool) -> None:
        row = METHODS[name]
        needs = row.needs
        self.guard = guard
        self.name = name
        self.is_open = needs.is_open
        self.is_audited = row.is_audited and guard.access.audit is not None
        self.is_publish = row.is_publish
        self.show = row.show
        self.topic_of = None if row.named is None else guard.topics_of[row.named[0]]
        self._makes = row.makes
        self._is_of_all = row.is_of_all
        self._needs = needs
        self._part = (needs.topic or "").rpartition(".")[0] if reads else ""
        self._topic, self._group = (
            None if path is None else _field(request, path) for path in (needs.topic, needs.group)
        )
        self._what = "" if row.named is None else row.named[0]
        self._name = None if row.named is None else _field(request, row.named[1])

    @property
    def access(self) -> Access:
        return self.guard.access

    def demands_of(self, request: Any, principal: Principal) -> tuple[Demand, ...]:  # noqa: ANN401
        """Return what a request needs; raises Forbidden for a list of what one does not see."""
        kind = self._needs.kind
        assert kind is not None
        if self._part and not request.HasField(self._part):
            return ()
        topic = None if self._topic is None else self._topic(request)
        if self._needs.is_list:
            if topic is not None and not principal.rights.sees(topic=topic):
                shown = resource_text(topic=topic, stream=None, group=None)
                raise Forbidden(kind, shown, principal=principal.name)
            return ()
        if topic is None and self._is_of_all:
            return ()
        group = None if self._group is None else self._group(request)
        if self._name is None or self.topic_of is None:
            return (Demand(kind, topic, None, group),)
        return self._named_demands(kind, topic, self._name(request))

    def _named_demands(
        self, kind: RightKind, topic: str | None, name: str | None
    ) -> tuple[Demand, ...]:
        """Return what a request needs that names a recurrence or a replay: its own topic, and the
        one the request gives. What does not exist needs nothing: the method says so."""
        assert self.topic_of is not None
        found = None if name is None else self.topic_of(name)
        demands: tuple[Demand, ...] = ()
        if name is not None and found is not None:
            demands = (named_demand(kind, self._what, name, found),)
        if self._topic is None or (topic is None and found is not None):
            return demands
        return (*demands, Demand(kind, topic))

    def permit(self, principal: Principal, request: Message) -> Permit:
        """Return what a request was let in with; raises NotAuthenticated, Forbidden, or
        CapacityReached if it would make more than the principal may have.

        The principal is who it is now: the request may have been long on its way.
        """
        current = self.access.current(principal)
        permit = permit_of(current, self.demands_of(request, current))
        usage = self.access.usage_of(current)
        if self._makes and usage.quotas.has_counts:
            self.guard.counts.check(usage, permit, self._makes, _partitions_of(request))
        return permit

    async def audited(self, context: Context, permit: Permit, work: Awaitable[T]) -> T:
        """Do the work of a call that the audit has an entry of, and return once that is on disk."""
        audit, asked = self._audited(context, permit.principal)
        return await audit.following(asked, permit.demands, work)

    async def audit_begun(self, context: Context, permit: Permit) -> None:
        """Have an entry of a call that goes on, before anything is sent."""
        audit, asked = self._audited(context, permit.principal)
        await audit.called(asked, permit.demands)

    def _audited(self, context: Context, principal: Principal) -> tuple["Audit", Asked]:
        audit = self.access.audit
        assert audit is not None
        return audit, Asked("grpc", self.name, host_of(context.peer()), principal)

    def turn_ms(self, principal: Principal) -> int:
        """Return after how many ms a call may be read that publishes, if its principal has sent
        more than it may so far; raises QuotaExceeded if that is too long."""
        if not self.is_publish:
            return 0
        usage = self.access.usage_of(principal)
        if usage.quotas.bytes_per_s is None:
            return 0
        return usage.turn_ms(self.access.steady_ms(), ahead_ms=HELD_BACK_MS_MAX)

    async def wait(self, principal: Principal, wait_ms: int, context: Context) -> None:
        """Wait for a turn; raises QuotaExceeded if the call would not live to have it."""
        usage = self.access.usage_of(principal)
        left_s = context.time_remaining()
        if usage.unread >= HELD_BACK_MAX or (left_s is not None and left_s * 1_000 <= wait_ms):
            rate = usage.quotas.bytes_per_s or 0
            raise QuotaExceeded("bytes/s", rate, principal=principal.name, retry_after_ms=wait_ms)
        usage.unread += 1
        try:
            await asyncio.sleep(wait_ms / 1_000)
        finally:
            usage.unread -= 1

    def take_bytes(self, principal: Principal, size: int) -> None:
        """Count a request that publishes; raises QuotaExceeded."""
        if self.is_publish:
            usage = self.access.usage_of(principal)
            if usage.quotas.bytes_per_s is not None:
                usage.take_bytes(size, self.access.steady_ms(), ahead_ms=HELD_BACK_MS_MAX)

    @contextmanager
    def held(self, principal: Principal, context: Context) -> Iterator["HeldCall"]:
        """Hold a call that goes on: once it may not any more it is cancelled inside, and the reason
        is raised."""
        call = HeldCall(self, principal, context)
        try:
            with call:
                yield call
        except asyncio.CancelledError:
            if call.refusal is None or call.task.uncancel():
                raise
            raise call.refusal from None


class HeldCall:
    """A call that goes on: what it was let in with grows with its requests."""

    def __init__(self, method: GuardedMethod, principal: Principal, context: Context) -> None:
        self._method = method
        self._principal = principal
        self._context = context
        self._is_audit_due = method.is_audited
        self._demands: dict[Demand, None] = {}
        self._held = ExitStack()
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.refusal: WaterclockError | None = None
        """Why it was ended."""

    def __enter__(self) -> "HeldCall":
        self._hold(Permit(self._principal))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def check(self, request: Message) -> None:
        """Raise NotAuthenticated or Forbidden unless a request of the call may be worked on."""
        demands = self._method.demands_of(request, self._principal)
        if all(demand in self._demands for demand in demands):
            return
        permit = self._method.permit(self._principal, request)
        self._demands |= dict.fromkeys(permit.demands)
        self._hold(Permit(permit.principal, tuple(self._demands)))

    async def admit(self, request: Message, size: int) -> None:
        """Check a request. One that publishes waits until the principal may send so many bytes; if
        it may be sent at all is for the method to ask."""
        if not self._method.is_publish:
            self.check(request)
            if self._is_audit_due:
                self._is_audit_due = False
                permit = Permit(self._principal, tuple(self._demands))
                await self._method.audit_begun(self._context, permit)
            return
        access = self._method.access
        usage = access.usage_of(self._principal)
        # What refills a bucket is time alone.
        while wait_ms := usage.wait_for_bytes(size, access.steady_ms()):  # noqa: ASYNC110
            await asyncio.sleep(wait_ms / 1_000)

    def refusal_of(self, request: Message) -> WaterclockError | None:
        """Return why a request of the call may not be worked on, though the call goes on."""
        try:
            self.check(request)
        except (Forbidden, CapacityReached) as error:
            self._method.guard.denied(self._method.name, self._context, error)
            return error
        return None

    def _hold(self, permit: Permit) -> None:
        self._principal = permit.principal
        self._held.close()
        self._held.enter_context(self._method.access.holding(permit, self._end))

    def _end(self, error: WaterclockError) -> None:
        self.refusal = error
        self.task.cancel()


def topics_of(node: Node) -> dict[str, TopicOf]:
    """Return what finds the topic of a recurrence, a replay or a run, by its name."""
    return {
        "recurrence": lambda name: node.recurrences.topic_of(name) or None,
        "replay": node.replays.topic_of,
        "run": node.job_runs.topic_of,
    }


def named_demand(kind: RightKind, what: str, name: str, topic: str) -> Demand:
    """Return what a request needs that names something of a topic; of a run of several: all."""
    return Demand(kind, topic or None, shown=f"{what} {name!r}")


def host_of(peer: str) -> str:
    """Return the address in what gRPC calls a peer, such as `ipv6:%5B::1%5D:9000`."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6", "native"):
        return peer
    return unquote(rest).rpartition(":")[0].strip("[]")


def _partitions_of(request: Any) -> int | None:  # noqa: ANN401 - any message
    """Return how many partitions a request asks for, if it does."""
    settings = getattr(request, "settings", None)
    asked: int | None = None if settings is None else settings.partitions
    return asked or None


def _field(request: Descriptor, path: str) -> Field:
    """Return what reads a text of a request, None if it is empty: then it means all there are."""
    parts = path.split(".")
    found: Descriptor | None = request
    for part in parts:
        assert found is not None, path
        field: FieldDescriptor = found.fields_by_name[part]
        found = field.message_type

    def read(message: Any) -> str | None:  # noqa: ANN401 - any message
        for part in parts:
            message = getattr(message, part)
        return message or None

    return read
