"""Which web pages may use the node from a browser (the Fetch standard, 3.2: CORS).

Pages of any origin may, unless a list is configured; never with credentials, for there are none:
a browser sends no cookie along, and whoever may reach the port may ask.
"""

from waterclock.server.http_messages import Request

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
