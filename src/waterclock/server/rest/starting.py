"""HTTP of a node from its first moment on: while it starts it says so, and what it waits for.

A node may have much to open, or wait for etcd and others for days. Whoever looks after it can tell
that from a node that is dead: `/health/live` is 200, `/health/ready` is 503 with the reason, and
everything else is 503, to be asked again. The same listener answers for the node once it is there,
so nobody who connected meanwhile is turned away.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.node.problems import STARTING, problem_named
from waterclock.server.access import Access, open_access
from waterclock.server.http.messages import Request, Response, json, problem
from waterclock.server.http.problems import RETRY_AFTER
from waterclock.server.http.routes import PREFIX
from waterclock.server.http.server import HttpServer, http_limits, serve_http
from waterclock.server.rest.health import LIVE, READY, Live, Ready

OPENS = "it opens what it has stored"


class StartingHttp:
    """What answers for a node that is not there yet. Make one with `answering_while_starting`."""

    server: HttpServer

    def __init__(self, access: Access, clock: Clock) -> None:
        self.access = access
        self.awaited: Callable[[], str] = lambda: ""
        """Tells what the node waits for; empty: for nobody but itself."""
        self._since_ms = clock.now_ms()

    def __repr__(self) -> str:
        return f"<StartingHttp: {self._reason()}>"

    def answer(self, request: Request) -> Response:
        """Answer any request."""
        path = request.path.removeprefix(PREFIX)
        is_look = request.method in (b"GET", b"HEAD")
        if is_look and path == LIVE.encode():
            return json(200, Live("live"))
        reason = self._reason()
        if is_look and path == READY.encode():
            found = problem_named(STARTING, reason, self._since_ms)
            return json(503, Ready("not ready", [found]), RETRY_AFTER)
        detail = f"the node is starting: {reason}; ask again, or elsewhere"
        return problem(503, detail, RETRY_AFTER, error="Unavailable")

    def _reason(self) -> str:
        awaited = self.awaited()
        return f"it waits for {awaited}" if awaited else OPENS


@asynccontextmanager
async def answering_while_starting(config: Config, clock: Clock) -> AsyncIterator[StartingHttp]:
    """Listen for HTTP until left; `serve` has the node answer. Raises BadConfig if it cannot.

    A process that shares its port with others begins with that of its own: they answer meanwhile.
    """
    cluster = config.cluster
    starting = StartingHttp(open_access(config, clock), clock)
    async with serve_http(
        starting.answer,
        host=config.server.host,
        port=cluster.process_http_port if cluster.is_process else cluster.http_port,
        limits=http_limits(config),
        access=starting.access,
    ) as starting.server:
        yield starting
