"""Requests of HTTP about topics at whichever node they reach: answered here, or by those that are
to.

One that a single node answers is forwarded as requests for streams are. What several nodes answer
is put together from their JSON.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec

from waterclock.cluster.forwarded import NOT_OWNER
from waterclock.model.errors import Fenced, NotLeader, Unavailable, Unreachable
from waterclock.schedule.duration import parse_duration
from waterclock.security.principals import ANYONE
from waterclock.server.access import permit_of
from waterclock.server.cluster.calls.forwarding import Trying
from waterclock.server.cluster.calls.http_merging import HTTP_MERGES, HttpAnswer
from waterclock.server.cluster.calls.place import Place
from waterclock.server.cluster.calls.router import Read, Router, Where, is_repeatable
from waterclock.server.cluster.calls.whole_answer import Lost
from waterclock.server.cluster.forwarder import Forwarder
from waterclock.server.http.messages import Answered, Later, Pending, Request, Response, json
from waterclock.server.http.operations import Operation
from waterclock.server.http.permits import demands_reader, field_reader
from waterclock.server.rest.consume import WAIT_MS_MAX

Reads = Callable[[Request], Read]


class HttpRouting:
    """Has requests answered where they are to be."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.forwarder: Forwarder | None = None
        """Set a moment after the first request may have come."""

    def __repr__(self) -> str:
        return f"<HttpRouting of {self._router.me}>"

    def _asks(self) -> Forwarder:
        if self.forwarder is None:
            raise Unavailable("the node is starting: ask again, or elsewhere")
        return self.forwarder

    def routed(self, operation: Operation) -> Operation:
        """Return an operation as this node offers it to clients."""
        place = operation.place
        if place is None or place.kind == "here":
            return operation
        reads, handler, router = _reads_of(operation), operation.handler, self._router

        def handle(request: Request) -> Answered | Later:
            read = reads(request)
            try:
                where = router.find(place, read)
            except NotLeader:
                where = None

            def elsewhere() -> Pending:
                return self._asks().forward_to(
                    request,
                    lambda: _only(router, place, read),
                    is_harmless=is_repeatable(place, read),
                    wait_ms=0 if place.wait is None else _wait_ms(read(place.wait)),
                )

            if where is not None:
                if where.only == router.me and place.kind == "replica":
                    return self._of_replica(operation, place, request, read)
                if where.only == router.me:
                    try:
                        answer = handler(request)
                    except NotLeader:  # it is to lead that, and does not yet, or no more
                        return elsewhere()
                    if asyncio.iscoroutine(answer):
                        return self._or_elsewhere(answer, place, read, elsewhere)
                    return answer
                if where.only is None:
                    return self._from_all(operation, place, request, read)
            return elsewhere()

        return replace(operation, handler=handle)

    def all_routed(self, operations: Iterable[Operation]) -> list[Operation]:
        """Return operations as this node offers them to clients."""
        return [self.routed(each) for each in operations]

    def checked(self, operation: Operation) -> Operation:
        """Return an operation as this node offers it to other nodes: it refuses what another one is
        to answer."""
        place = operation.place
        if place is None or place.kind == "here":
            return operation
        reads, handler, router = _reads_of(operation), operation.handler, self._router
        demands_of = None if operation.named is None else demands_reader(operation)

        def handle(request: Request) -> Answered | Later:
            read = reads(request)
            try:
                router.check(place, read, request.partitions)
                if demands_of is not None and request.principal is not ANYONE:
                    # The records of the node that was asked first may be older than ours.
                    permit_of(request.principal, demands_of(request))
                answer = handler(request)
            except NotLeader:
                return Response(NOT_OWNER)
            if asyncio.iscoroutine(answer):
                return _unless_moved(self._still(answer, place, read, request.partitions))
            return answer

        return replace(operation, handler=handle)

    def _of_replica(
        self, operation: Operation, place: Place, request: Request, read: Read
    ) -> Answered | Later:
        """Answer from the copy here; what it does not have yet, the leader has."""
        try:
            return operation.handler(request)
        except NotLeader:
            return self._asks().forward_to(
                request, lambda: self._router.leader(place, read), is_harmless=True
            )

    async def _or_elsewhere(
        self, later: Later, place: Place, read: Read, elsewhere: Callable[[], Pending]
    ) -> Answered:
        """Await an answer; what this node turns out not to lead is asked where it is by then."""
        try:
            return await self._still(later, place, read, ())
        except NotLeader:
            return elsewhere()

    async def _still(
        self, later: Later, place: Place, read: Read, partitions: tuple[int, ...]
    ) -> Answered:
        """Await an answer; raises if it may lack what this node leads no more."""
        answered = await later
        self._router.check_still(place, read, partitions)
        return answered

    # Several nodes

    async def _from_all(
        self, operation: Operation, place: Place, request: Request, read: Read
    ) -> Response:
        trying = Trying()
        answers: list[HttpAnswer] = []
        where: Where | None = None
        while True:
            try:
                where = where or self._router.find(place, read)
                moved, problem = await self._ask_all(operation, request, where, answers)
            except NotLeader as error:
                moved, problem = (), error
            if isinstance(problem, Response):
                return problem
            if problem is None:
                merge = HTTP_MERGES[operation.name]
                return json(200, merge(request, answers, self._router.me))
            if isinstance(problem, Lost) and not is_repeatable(place, read):
                raise Fenced(f"it may have been done, or not: {problem}") from problem
            await trying.pause(problem)
            where = self._regrouped(place, read, moved) if moved else None
            if not moved:
                answers.clear()

    async def _ask_all(
        self, operation: Operation, request: Request, where: Where, answers: list[HttpAnswer]
    ) -> tuple[tuple[int, ...], Exception | Response | None]:
        """Ask all nodes; return the partitions that have moved meanwhile, and what was wrong."""
        legs = list(where.nodes.items())
        results = await asyncio.gather(
            *(self._leg(operation, request, *leg) for leg in legs), return_exceptions=True
        )
        moved: list[int] = []
        problem: Exception | None = None
        for (node, partitions), result in zip(legs, results, strict=True):
            if isinstance(result, NotLeader | Unreachable | Lost):
                moved += partitions
                problem = result
            elif isinstance(result, BaseException):
                raise result
            elif result.status >= 300:
                return (), result
            else:
                answers.append(HttpAnswer(node, partitions, msgspec.json.decode(result.body)))
        return tuple(moved), problem

    async def _leg(
        self, operation: Operation, request: Request, node: str, partitions: tuple[int, ...]
    ) -> Response:
        """Return what one node answers; raises NotLeader, Unreachable or Lost."""
        if node != self._router.me:
            return await self._asks().ask_for(node, request, partitions)
        place = operation.place
        assert place is not None
        read = _reads_of(operation)(request)
        self._router.check(place, read, partitions)
        answered: Any = operation.handler(request)
        if asyncio.iscoroutine(answered):
            answered = await self._still(answered, place, read, partitions)
        assert isinstance(answered, Response), operation.name
        return answered

    def _regrouped(self, place: Place, read: Read, moved: tuple[int, ...]) -> Where | None:
        try:
            found = self._router.regrouped(place, read, moved)
        except NotLeader:
            return None
        only = found.only
        return found if only is None else Where(found.what, {only: moved})


async def _unless_moved(later: Later) -> Answered:
    """Await an answer; that this node does not lead any more is told as such."""
    try:
        return await later
    except NotLeader:
        return Response(NOT_OWNER)


def _wait_ms(text: str) -> int:
    """Return how long whoever answers will wait, however much longer the client would."""
    return min(parse_duration(text), WAIT_MS_MAX)


def _only(router: Router, place: Place, read: Read) -> str | None:
    try:
        return router.find(place, read).only
    except NotLeader:
        return None


def _reads_of(operation: Operation) -> Reads:
    """Return what makes readers of fields of requests."""
    place = operation.place
    assert place is not None
    named = (
        place.topic,
        place.group,
        place.partition,
        place.meta_if,
        place.repeatable_if,
        place.wait,
    )
    fields = {name: field_reader(operation, name) for name in named if name is not None}

    def reads(request: Request) -> Read:
        def read(name: str) -> Any:  # noqa: ANN401 - any field
            reader = fields[name]
            assert reader is not None
            found: Any = reader(request)
            return None if found is msgspec.UNSET else found

        return read

    return reads
