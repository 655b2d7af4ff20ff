"""A request over HTTP/1.1, its bytes, and what may come of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from waterclock.model.errors import BadInput, Unreachable
from waterclock.model.units import GIB, KIB
from waterclock.security.credential import Credential

ANSWER_BYTES_MAX = 1 * GIB
"""The body of an answer. Nodes answer with less: more is not a node."""
HEAD_BYTES_MAX = 64 * KIB
PORTS = {"http": 80, "https": 443}

_SETTINGS = 4
SPEAKS_GRPC = (
    "http_address: what answers there speaks gRPC, not HTTP. Type the port the node has for HTTP, "
    "8080 by default, as in http://localhost:8080"
)


class ConnectionBroken(Unreachable):
    """The connection was lost before the answer was whole: the request may have been served."""


class HttpAnswer(NamedTuple):
    status: int
    content_type: str
    body: bytes


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: Mapping[str, object] = {}
    body: bytes | None = None
    is_poll: bool = False
    """It waits for others, perhaps for long."""
    headers: Sequence[tuple[str, str]] = ()


def request_head(url: str, credential: Credential | None = None) -> tuple[str, int, str]:
    """Return host, port, and the head of a request with places for method and target.

    Raises BadInput if the URL is none, or would have a token sent in the open.
    """
    scheme = "http" if credential is None else "https"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = urlsplit("")
    if parts.scheme != scheme or not host or parts.query or parts.fragment or parts.username:
        hint = "" if parts.scheme != "https" else ": https needs a credential"
        raise BadInput(f"http_address {url!r} is not of the form {scheme}://host:port{hint}")
    prefix, place = (text.replace("%", "%%") for text in (parts.path.rstrip("/"), parts.netloc))
    head = f"%s {prefix}%s HTTP/1.1\r\nHost: {place}\r\nAccept: application/json\r\n"
    if credential is not None:
        head += f"Authorization: Bearer {credential.token}\r\n"
    return host, PORTS[scheme] if port is None else port, head


def encoded_request(head: str, request: HttpRequest) -> bytes:
    """Return a request as bytes, with the head that `request_head` made."""
    query = urlencode(request.query)
    target = f"{request.path}?{query}" if query else request.path
    lines = head % (request.method, target)
    if request.headers:
        lines += "".join(f"{name}: {text}\r\n" for name, text in request.headers)
    if request.body is None:
        return f"{lines}\r\n".encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(request.body)}\r\n\r\n"
    return f"{lines}{kind}".encode() + request.body


def is_http2(data: bytes) -> bool:
    """Return whether this is how a server of gRPC begins: with its settings (RFC 9113, 3.4)."""
    return len(data) >= 9 and data[0] == 0 and data[3] == _SETTINGS and data[5:9] == bytes(4)
