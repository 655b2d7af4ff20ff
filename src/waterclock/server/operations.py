"""What operators and their machines ask a node over HTTP.

GET /health/live     200 while the process turns its loop
GET /health/ready    200 if the node takes requests, else 503; either way, what is wrong
GET /metrics         for Prometheus
"""

from waterclock.node.node import Node
from waterclock.server.http_messages import Request, Response, json
from waterclock.server.http_routes import Routes
from waterclock.server.metrics import CONTENT_TYPE, Metrics


def operations(node: Node, metrics: Metrics) -> Routes:
    """Return the routes."""
    alive = json(200, {"status": "live"})

    def live(_: Request) -> Response:
        return alive

    def ready(_: Request) -> Response:
        problems = node.problems()
        if node.is_ready:
            return json(200, {"status": "ready", "problems": problems})
        return json(503, {"status": "not ready", "problems": problems})

    async def scrape(_: Request) -> Response:
        return Response(200, await metrics.text(), CONTENT_TYPE)

    return {
        b"/health/live": {b"GET": live},
        b"/health/ready": {b"GET": ready},
        b"/metrics": {b"GET": scrape},
    }
