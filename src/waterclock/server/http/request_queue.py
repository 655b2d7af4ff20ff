"""The requests of one connection whose turn has not come: they are answered in order."""

from collections import deque

from waterclock.model.units import KIB
from waterclock.server.calls import BytesInFlight
from waterclock.server.http.messages import Request

REQUEST_BYTES = 1 * KIB
HEADER_BYTES = 150
"""About what a request takes besides its body, and each of its headers."""


class RequestQueue:
    """First come, first served. What stands in it counts against the bound of all requests."""

    __slots__ = ("_bodies", "_requests", "size_bytes")

    def __init__(self, bodies: BytesInFlight) -> None:
        self._bodies = bodies
        self._requests: deque[Request] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __repr__(self) -> str:
        return f"<RequestQueue of {len(self)}, {self.size_bytes} B>"

    def put(self, request: Request) -> None:
        """Queue a request; raises Overloaded if all queues together are too long."""
        size = REQUEST_BYTES + HEADER_BYTES * len(request.headers)
        size += 0 if request.held else len(request.body)
        self._bodies.acquire_nowait(size)
        request.held += size
        self.size_bytes += request.held
        self._requests.append(request)

    def get(self) -> Request:
        """Take out whose turn it is. It counts until you have answered it."""
        request = self._requests.popleft()
        self.size_bytes -= request.held
        return request

    def clear(self) -> None:
        self._bodies.release(self.size_bytes)
        self._requests.clear()
        self.size_bytes = 0
