"""Heads that came before: read once, and found by their bytes from then on.

Clients say the same again and again: of a million requests to send, nearly all have a head that
came before. What a head means is in its bytes, so a plain one is looked up whole, in a fraction of
the time that a parser takes to call back for every part of it. Plain is a head as most programs
write it: GET or POST by HTTP/1.1 that goes on, one Host, a small body at most whose length is told;
and nothing that is about this request alone, about a page, or about who asks. All others are for
the parser of the connection, and so is what does not come in one piece.

There are two tables. The newer one, once full, becomes the older one, and that is forgotten; what
is found in the older one is put into the newer. So what is used stays, and a made-up head costs
those who come again no more than one of theirs costs.
"""

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from waterclock.model.units import KIB
from waterclock.server.http.counters import RequestCounters
from waterclock.server.http.messages import Handler

HEAD_BYTES_MAX = 1 * KIB
HEADS_MAX = 4_096
"""In each table; 20 MB in both, if all are as large as can be."""
BODY_BYTES_MAX = 4 * KIB
HEAD_END = b"\r\n\r\n"

_METHODS = (b"GET", b"POST")
_NOT_PLAIN = frozenset(
    {
        b"authorization",
        b"cookie",
        b"expect",
        b"origin",
        b"proxy-authorization",
        b"sec-fetch-site",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    }
)
_BROWSER = b"Mozilla/"


class KnownHead:
    """What a plain head says."""

    __slots__ = ("body_bytes", "counters", "handler", "headers", "host", "method", "path", "query")

    def __init__(
        self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body_bytes: int
    ) -> None:
        self.method = method
        self.path, _, self.query = target.partition(b"?")
        self.headers = headers
        self.host = next(value for name, value in headers if name.lower() == b"host")
        self.body_bytes = body_bytes
        self.handler: Handler | None = None
        """What answers such requests, once that was looked up, ..."""
        self.counters: RequestCounters | None = None
        """... and what counts them."""

    def __repr__(self) -> str:
        return f"<KnownHead {self.method.decode()} {self.path.decode('latin-1')}>"


class KnownHeads:
    """Those of one port."""

    def __init__(self, head_bytes_max: int, body_bytes_max: int) -> None:
        self.newer: dict[bytes, KnownHead] = {}
        self._older: dict[bytes, KnownHead] = {}
        self._head_bytes_max = min(HEAD_BYTES_MAX, head_bytes_max)
        self._body_bytes_max = min(BODY_BYTES_MAX, body_bytes_max)

    def __len__(self) -> int:
        return len(self.newer) + len(self._older)

    def __repr__(self) -> str:
        return f"<KnownHeads {len(self)}>"

    def learn(self, head: bytes) -> KnownHead | None:
        """Return what a head says that is not in `newer`, with the empty line at its end; None if
        it is not plain."""
        if len(head) > self._head_bytes_max:
            return None
        known = self._older.get(head)
        if known is None:
            known = read_plain(head)
            if known is None or known.body_bytes > self._body_bytes_max:
                return None
        if len(self.newer) >= HEADS_MAX:
            self._older, self.newer = self.newer, {}
        self.newer[head] = known
        return known

    def clear(self) -> None:
        """Forget all of them: other handlers answer from now on."""
        self.newer, self._older = {}, {}


class _Reader:
    """What the parser calls."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))


def read_plain(head: bytes) -> KnownHead | None:
    """Return what a head says; None if it is not plain."""
    reader = _Reader()
    parser = HttpRequestParser(reader)
    try:
        parser.feed_data(head)
    except (HttpParserError, HttpParserUpgrade):
        return None
    method, headers = parser.get_method(), reader.headers
    # Written again as it was read, it must be the same: else there is something in it that only the
    # parser knows, such as where the head ends.
    lines = [b"%b %b HTTP/1.1" % (method, reader.url)]
    lines += [b"%b: %b" % pair for pair in headers]
    if head != b"\r\n".join(lines) + HEAD_END:
        return None
    body_bytes = _plain_body_bytes(headers)
    if body_bytes is None or method not in _METHODS or not reader.url.startswith(b"/"):
        return None
    return KnownHead(method, reader.url, headers, body_bytes)


def _plain_body_bytes(headers: list[tuple[bytes, bytes]]) -> int | None:
    """Return how long the body is; None if the headers are not plain."""
    hosts = body_bytes = 0
    for name, value in headers:
        lower = name.lower()
        if lower in _NOT_PLAIN:
            return None
        if lower == b"host":
            hosts += 1
        elif lower == b"content-length":
            body_bytes = int(value)  # llhttp has seen that it is a number, and that there is one
        elif lower == b"connection":
            if value.lower() != b"keep-alive":
                return None
        elif lower == b"user-agent" and value.startswith(_BROWSER):
            return None
    return body_bytes if hosts == 1 else None
