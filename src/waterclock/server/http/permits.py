"""From what an operation needs (`Operation.needs`) to what one request needs, and whether it may.

The names that count are those the handler will see: path, query and body are read here with the
types of the operation's row, and the handler is given what was read. Where a request names
something that has a topic, a recurrence or a replay, that topic counts (`Named`); together with the
one that the request gives, if it gives one.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec

from waterclock.model.errors import Forbidden, NotAuthenticated, QuotaExceeded
from waterclock.security.principals import resource_text
from waterclock.server.access import Access, Asked, Demand, permit_of
from waterclock.server.counts import Counts
from waterclock.server.http.input import body_of, parameters_of
from waterclock.server.http.messages import Answered, Handler, Later, Request

if TYPE_CHECKING:
    from waterclock.server.audit import Audit
    from waterclock.server.http.operations import Operation

Field = Callable[[Request], str | None]


class Named(NamedTuple):
    """Something in a request that has a topic of its own."""

    what: str
    field: str
    """Of the parameters: its name; None names nothing."""
    topic_of: Callable[[str], str | None]
    """Finds its topic; None if there is no such thing: the handler says so."""


def guarded(operation: "Operation", access: Access, counts: Counts) -> Handler:
    """Return the handler of an operation that refuses who may not call it."""
    needs, handler = operation.needs, operation.handler
    if needs.is_open:
        return handler
    demands_of = demands_reader(operation)
    makes, name = operation.makes, operation.name
    if operation.is_audited and access.audit is not None:
        handler = _audited(operation, access.audit)

    def handle(request: Request) -> Answered | Later:
        asker = request.asker
        try:
            if asker.refusal is not None:
                raise asker.refusal
            if asker.reloads != access.reloads:  # it was long under way, or in a queue
                principal = access.current(asker.principal)
                request.asker = asker = asker._replace(principal=principal, reloads=access.reloads)
            permit = request.permit = permit_of(asker.principal, demands_of(request))
        except (NotAuthenticated, Forbidden, QuotaExceeded) as error:
            access.denied(Asked("http", name, asker.address), error)
            raise
        if makes:
            counts.check(access.usage_of(asker.principal), permit, makes, partitions_of(request))
        return handler(request)

    return handle


def _audited(operation: "Operation", audit: "Audit") -> Handler:
    """Return the handler of an operation that answers once the audit has an entry of the call."""

    async def work(request: Request) -> Answered:
        answer = operation.handler(request)
        return await answer if isinstance(answer, Coroutine) else answer

    async def handle(request: Request) -> Answered:
        asked = Asked("http", operation.name, request.asker.address, request.principal)
        permit = request.permit
        assert permit is not None
        return await audit.following(asked, permit.demands, work(request))

    return handle


def partitions_of(request: Request) -> int | None:
    """Return how many partitions a body asks for, if it does."""
    asked = getattr(request.content, "partitions", None)
    return asked if isinstance(asked, int) else None


def demands_reader(operation: "Operation") -> Callable[[Request], tuple[Demand, ...]]:
    """Return what reads from a request what it needs."""
    needs, named = operation.needs, operation.named
    assert needs.kind is not None
    kind = needs.kind
    if needs.is_list:
        return _list_reader(operation)
    topic, stream, group = (
        field_reader(operation, name) for name in (needs.topic, needs.stream, needs.group)
    )
    name_of = None if named is None else field_reader(operation, named.field)

    def read(request: Request) -> tuple[Demand, ...]:
        demands: tuple[Demand, ...] = ()
        if named is None or needs.topic != named.field:
            given = (
                None if topic is None else topic(request),
                None if stream is None else stream(request),
                None if group is None else group(request),
            )
            demands = (Demand(kind, *given),)
        if named is None or name_of is None:
            return demands
        name = name_of(request)
        found = None if name is None else named.topic_of(name)
        if found is None:
            return demands
        # Of a run of several topics: all there are.
        return (*demands, Demand(kind, found or None, shown=f"{named.what} {name!r}"))

    return read


def _list_reader(operation: "Operation") -> Callable[[Request], tuple[Demand, ...]]:
    """Return what refuses a list of the parts of a topic that one does not see at all."""
    needs = operation.needs
    topic = field_reader(operation, needs.topic)

    def read(request: Request) -> tuple[Demand, ...]:
        name = None if topic is None else topic(request)
        if name is not None and not request.principal.rights.sees(topic=name):
            shown = resource_text(topic=name, stream=None, group=None)
            raise Forbidden(needs.kind or "", shown, principal=request.principal.name)
        return ()

    return read


def field_reader(operation: "Operation", field: str | None) -> Field | None:
    """Return what reads a field of the parameters or, if they have none of that name, of the body.

    A field that neither has is a mistake in the table.
    """
    if field is None:
        return None
    parameters, body = operation.parameters, _plain(operation.body)
    if parameters is not None and field in _fields(parameters):
        return lambda request: getattr(parameters_of(request, parameters), field)
    assert field in _fields(body), f"{operation.name}: no field {field} in its parameters and body"
    return lambda request: getattr(body_of(request, body), field)


def _fields(model: Any) -> tuple[str, ...]:  # noqa: ANN401 - a type, or several
    is_struct = isinstance(model, type) and issubclass(model, msgspec.Struct)
    return model.__struct_fields__ if is_struct else ()


def _plain(model: Any) -> Any:  # noqa: ANN401 - a type, or several
    """Return the type of a body without what describes it."""
    return get_args(model)[0] if hasattr(model, "__metadata__") else model
