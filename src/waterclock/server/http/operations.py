"""The table of what HTTP offers: one row makes a route and its OpenAPI description.

    Operation(
        "GET", "/topics/{topic}/scheduled", list_scheduled,
        name="listScheduled", tag="schedule", summary="List pending messages by due time.",
        parameters=ListParameters,                 # a struct: path and query together
        responses={200: ResponseSpec("A page.", ScheduledPage)},
        needs=Needs("read", topic="topic"),        # who may call it; fields of parameters or body
        problems=(404,),                           # 400, 429, 500 and 503 are always possible
    )

A handler is a `Handler`: it takes the request and reads its parameters and body, with
`parameters_of` and `body_of`, into the same types that the row names. On a secure node it is called
for those only who have the right that the row needs (`permits.py`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from waterclock.model.errors import Stopping
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import Place
from waterclock.server.counts import Made
from waterclock.server.http.counters import HttpCounters
from waterclock.server.http.messages import JSON, Answered, Handler, Later, Request, Response
from waterclock.server.http.permits import Named
from waterclock.server.http.routes import PREFIX, Routes


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """What one status of an operation means, and the type of its body."""

    description: str
    model: Any = None
    """A type msgspec knows, or a tuple of such; None: no body, or one that is no JSON."""
    content_type: bytes = JSON


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    name: str
    """Its `operationId`."""
    summary: str
    responses: Mapping[int, ResponseSpec]
    needs: Needs
    """Who may call it. There is no default: one that is forgotten is found by the type check."""
    tag: str = "node"
    description: str = ""
    parameters: Any = None
    """A struct of all parameters; those that the path names are in the path, others in the query.
    Their bounds are those of the struct's annotations."""
    body: Any = None
    """The type of the body, or a tuple of those it may have."""
    body_example: object = None
    problems: tuple[int, ...] = ()
    """Statuses of problems it may answer with, beside those that all may."""
    is_taking: bool = False
    """A GET takes messages from others: so there is no HEAD, which would throw them away."""
    is_linkable: bool = False
    """A person may come to it from any site by a link: it shows something, and changes nothing."""
    is_last_to_stop: bool = False
    """A node that is stopping still answers it."""
    named: Named | None = None
    """A parameter names something whose topic counts for `needs`, too."""
    makes: tuple[Made, ...] = ()
    """What it makes if it is not there yet, which quotas count."""
    is_change: bool = False
    """It changes what there is, beyond messages: the audit has an entry of each call, and so of all
    that need `admin`."""
    place: Place | None = None
    """Which node answers it, if it is about topics."""

    def __post_init__(self) -> None:
        assert self.path.startswith("/"), self.path
        assert self.method.isupper(), self.method
        is_plain = self.method == "GET" and self.parameters is None and not self.is_taking
        assert is_plain or not self.is_linkable, f"{self.path} may change something"

    @property
    def is_audited(self) -> bool:
        """Whether the audit has an entry of each call, and not of denials only."""
        return self.is_change or self.needs.kind == "admin"


Guard = Callable[[Operation], Handler]
"""Returns the handler of an operation that looks first who asks."""


def linkable_of(operations: Iterable[Operation]) -> frozenset[bytes]:
    """Return the paths of a table to which other sites may link."""
    paths = {one.path.encode() for one in operations if one.is_linkable}
    return frozenset(paths | {PREFIX + path for path in paths})


def stopping_routes_of(
    operations: Iterable[Operation],
    guard: Guard | None = None,
    counters: HttpCounters | None = None,
) -> Routes:
    """Return the routes of a table while the node stops: nearly all answer that it stops."""

    def stopping(_: Request) -> Response:
        raise Stopping("the node is stopping: try again, or elsewhere")

    table = [one if one.is_last_to_stop else replace(one, handler=stopping) for one in operations]
    return routes_of(table, guard, counters)


def routes_of(
    operations: Iterable[Operation],
    guard: Guard | None = None,
    counters: HttpCounters | None = None,
) -> Routes:
    """Return the routes of a table, each handler behind a guard if there is one, and counted."""
    routes: dict[bytes, dict[bytes, Handler | None]] = {}
    for operation in operations:
        methods = routes.setdefault(operation.path.encode(), {})
        assert operation.method.encode() not in methods, f"{operation.method} {operation.path}"
        handler = operation.handler if guard is None else guard(operation)
        method = operation.method
        methods[method.encode()] = _counted(handler, operation.name, method, counters)
        if operation.is_taking:
            methods[b"HEAD"] = None
        elif method == "GET":
            methods[b"HEAD"] = _counted(handler, operation.name, "HEAD", counters)
    return routes


def _counted(handler: Handler, name: str, method: str, counters: HttpCounters | None) -> Handler:
    """Return a handler that says which operation a request is of."""
    if counters is None:
        return handler
    own = counters.operation(name, method)

    def handle(request: Request) -> Answered | Later:
        request.counters = own
        if not request.params:
            request.handler = handler
        return handler(request)

    return handle
