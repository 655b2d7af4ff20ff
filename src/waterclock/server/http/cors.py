"""Which web pages may use the node from a browser (the Fetch standard, 3.2: CORS).

Pages of any origin may, unless a list is configured; never with credentials, for there are none:
a browser sends no cookie along, and every client that reaches the port may ask.

With a list, a request from any other page is refused before anything is done: a browser would keep
the answer from the page, but a simple request it sends without asking first. Pages of the node's
own address are not other pages.
"""

from waterclock.server.http.messages import Answered, Handler, Later, Request, problem

PREFLIGHT_S = 7_200
"""How long a browser need not ask again: the most that Chromium allows."""
ANY = "*"

_EXPOSED = b"Access-Control-Expose-Headers: *\r\n"


class Cors:
    """Tells the header lines for a request from a page."""

    def __init__(self, origins: tuple[str, ...] = (ANY,)) -> None:
        self._is_any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self.plain = b"" if self._is_any else b"Vary: Origin\r\n"
        """For requests that do not come from a page."""

    def __repr__(self) -> str:
        return f"<Cors {'any' if self._is_any else sorted(self._origins)}>"

    def guarded(self, answer: Handler) -> Handler:
        """Return a handler that refuses pages of other origins."""
        if self._is_any:
            return answer

        def guarded(request: Request) -> Answered | Later:
            if request.origin is None or self._admits(request, request.origin):
                return answer(request)
            detail = "pages of this origin may not ask: see server.cors_origins"
            return problem(403, detail, error="Forbidden", field="Origin")

        return guarded

    def _admits(self, request: Request, origin: bytes) -> bool:
        return origin in self._origins or origin.partition(b"://")[2] == request.header(b"host")

    def lines(self, origin: bytes | None) -> bytes:
        """Return the lines to add to an answer."""
        if origin is None:
            return self.plain
        if self._is_any:
            return b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
        if origin not in self._origins:
            return self.plain
        return self.plain + b"Access-Control-Allow-Origin: " + origin + b"\r\n" + _EXPOSED


def preflight_lines(request: Request, allow: bytes) -> bytes:
    """Return what a browser wants to know before it asks; nothing if this is no such question."""
    if request.origin is None or request.header(b"access-control-request-method") is None:
        return b""
    wanted = request.header(b"access-control-request-headers")
    headers = b"" if wanted is None else b"Access-Control-Allow-Headers: " + wanted + b"\r\n"
    age = b"Access-Control-Max-Age: %d\r\n" % PREFLIGHT_S
    return b"Access-Control-Allow-Methods: " + allow + b"\r\n" + headers + age
