"""Health and metrics of the node over HTTP, for operators and their machines.

GET /                what this is, and where to go on; to browsers, the console
GET /health          200 if the node does all it is for, else 503: as load balancers ask
GET /health/live     200 while the process turns its loop
GET /health/ready    200 if the node does all it is for, else 503; either way, what is wrong
GET /metrics         for Prometheus
"""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

import waterclock
from waterclock.node.node import Node
from waterclock.node.problems import HealthProblem
from waterclock.security.rights import OPEN, Needs
from waterclock.server.console.assets import is_person, page_answer
from waterclock.server.http.messages import Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster

LIVE = "/health/live"
READY = "/health/ready"


class Hello(msgspec.Struct):
    """What answers here, and where to go on."""

    hello: str
    version: str
    links: dict[str, str]


HELLO = Hello(
    "This is Waterclock. Below /api/v1/streams it speaks the API of iPubSub.",
    waterclock.__version__,
    {
        "console": "/",
        "docs": "/docs",
        "openapi": "/openapi.json",
        "health": "/health",
        "topics": "/topics",
        "streams": "/streams",
    },
)


class Health(msgspec.Struct):
    """Whether the node is ready."""

    status: str


class Live(msgspec.Struct):
    """The process turns its loop."""

    status: str


class Ready(msgspec.Struct, omit_defaults=True):
    """Whether the node is ready, and what is wrong."""

    status: str
    problems: list[HealthProblem]
    members: int | None = None
    """Nodes of the cluster that are there, this one included; absent if it has none."""


def operations(node: Node, metrics: Metrics, cluster: "Cluster | None" = None) -> list[Operation]:
    """Return the part of the table for operators."""
    alive, well = json(200, Live("live")), json(200, Health("ok"))
    hello = json(200, HELLO, b"Vary: Accept\r\n")

    def greet(request: Request) -> Response:
        return page_answer(request) if is_person(request) else hello

    def health(_: Request) -> Response:
        return well if node.is_ready else json(503, Health("not ready"))

    def live(_: Request) -> Response:
        return alive

    def ready(_: Request) -> Response:
        members = None if cluster is None else cluster.members
        status, word = (200, "ready") if node.is_ready else (503, "not ready")
        return json(status, Ready(word, node.problems(), members))

    async def scrape(_: Request) -> Response:
        return Response(200, await metrics.text(), CONTENT_TYPE)

    operation = partial(Operation, tag="node", is_linkable=True, is_last_to_stop=True)
    return [
        operation(
            "GET", "/", greet, "hello", "Tell what answers here.",
            {200: ResponseSpec("This node.", Hello)},
            description="To a browser, which asks for HTML, the console.",
            needs=OPEN,
        ),
        operation(
            "GET", "/health", health, "health", "Tell in a word whether the node is ready.",
            {200: ResponseSpec("It is.", Health), 503: ResponseSpec("It is not.", Health)},
            needs=OPEN,
        ),
        operation(
            "GET", LIVE, live, "live", "Tell whether the process lives.",
            {200: ResponseSpec("It does.", Live)},
            needs=OPEN,
        ),
        operation(
            "GET", READY, ready, "ready",
            "Tell whether the node takes requests and can store what it takes.",
            {
                200: ResponseSpec("It does; problems, if any, concern a part of it.", Ready),
                503: ResponseSpec("It does not; see the problems that are blocking.", Ready),
            },
            needs=OPEN,
        ),
        operation(
            "GET", "/metrics", scrape, "metrics", "Metrics for Prometheus.",
            {200: ResponseSpec("Metrics.", content_type=CONTENT_TYPE)},
            needs=Needs("read"),
        ),
    ]  # fmt: skip
