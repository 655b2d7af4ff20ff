"""What HTTP counts: requests by operation and status, connections, bytes, and who was refused.

A request costs a few additions to plain integers; `server/request_metrics.py` gives them names.
Every request counts once: when its answer, or the head of one in pieces, is written; or as
abandoned, if its client goes before that.
"""

from bisect import bisect_left
from time import perf_counter

from waterclock.node.counters import MILLISECONDS, Histogram

NO_OPERATION = "(none)"
ANY_METHOD = "(any)"

REASONS = {
    400: "malformed",
    401: "unauthenticated",
    403: "forbidden",
    408: "slow_request",
    413: "large_body",
    417: "expectation",
    421: "foreign_host",
    429: "overloaded",
    431: "large_head",
    501: "transfer_coding",
    503: "connections",
    505: "version",
}
"""Why a connection is refused: what the status that it is answered with means."""
STATUSES = 512
FAST_S = MILLISECONDS[0] / 1_000


class RequestCounters:
    """Requests of one operation by one method."""

    __slots__ = ("_elapsed_s", "_slow", "_statuses", "method", "operation")

    def __init__(self, operation: str, method: str) -> None:
        self.operation = operation
        self.method = method
        self._statuses = [0] * STATUSES
        self._elapsed_s = 0.0
        self._slow = [0] * (len(MILLISECONDS) + 1)
        """As a histogram's counts; nearly all are below the first bound, and not counted here."""

    def __repr__(self) -> str:
        return f"<RequestCounters {self.method} {self.operation} {self.statuses()}>"

    def note(self, status: int, begun: float) -> None:
        """Count a request that is answered, and was begun at a time of `perf_counter`."""
        elapsed_s = perf_counter() - begun
        if elapsed_s > FAST_S:
            self._slow[bisect_left(MILLISECONDS, elapsed_s * 1_000)] += 1
        self._elapsed_s += elapsed_s
        self._statuses[status] += 1

    def statuses(self) -> dict[int, int]:
        """Return how many were answered with each status."""
        return {status: count for status, count in enumerate(self._statuses) if count}

    def milliseconds(self) -> Histogram:
        """Return how long requests took, from their turn until their answer was written, or the
        head of one in pieces."""
        found = Histogram(MILLISECONDS)
        found.add(self._slow, self._elapsed_s * 1_000)
        found.counts[0] += sum(self._statuses) - sum(self._slow)
        return found


class HttpCounters:
    """Of one port, since the node started."""

    __slots__ = (
        "abandoned_requests",
        "closed_connections",
        "opened_connections",
        "operations",
        "received_bytes",
        "refused",
        "sent_bytes",
        "slow_readers",
        "streaming",
        "unmatched",
    )

    def __init__(self) -> None:
        self.unmatched = RequestCounters(NO_OPERATION, ANY_METHOD)
        """Requests that no operation answers: 404, 405, OPTIONS."""
        self.operations = {(NO_OPERATION, ANY_METHOD): self.unmatched}
        self.opened_connections = 0
        self.closed_connections = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.streaming = 0
        """Answers in pieces under way."""
        self.abandoned_requests = 0
        self.slow_readers = 0
        """Connections cut off because the client did not read."""
        self.refused = dict.fromkeys(REASONS, 0)
        """Connections that ended with an answer to what nobody worked on, by its status."""

    def __repr__(self) -> str:
        return f"<HttpCounters {self.connections} connections>"

    @property
    def connections(self) -> int:
        """How many are open."""
        return self.opened_connections - self.closed_connections

    def operation(self, name: str, method: str) -> RequestCounters:
        """Return the counters of an operation, the same each time."""
        return self.operations.setdefault((name, method), RequestCounters(name, method))
