"""Which web pages may use the node from a browser: none but its own, unless they are listed.

Every page that a person opens can have the browser send requests to whatever that person reaches,
a node on loopback too. The browser keeps the answers from the page (the same-origin policy), but it
has sent the requests: a form publishes, and `<img src=".../events?group=billing&ack=auto">` takes
messages from a group. So the guard refuses such requests at their head, before anything is done:

    Host is none of ours                              421   an attacker's name leads here: DNS
                                                            rebinding, all else looks like our page
    Sec-Fetch-Site is neither same-origin nor none    403   a browser says it is another site's page
    an older browser: Origin is not our own           403
    neither, but a browser asks (see `_is_browser`)   403   plain HTTP off loopback has no
                                                            Sec-Fetch-Site, and an image no Origin

An Origin on the list passes all but the first. An address of digits passes the first: no name was
looked up that somebody could have rebound; so do probes, scrapers and port mappings. Requests
without any of these headers pass, as those of curl and of clients: what type their body has is no
matter, as a page cannot leave the headers out. Last, a person may follow a link from another site
to what only shows something (`Operation.is_linkable`): that page cannot read the window it opens.

The guard looks at requests that bear one of these headers only; others cost the look-up of their
Host in a set. Answers to listed pages follow the Fetch standard, 3.2 (CORS), without credentials.
"""

from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address

from waterclock.server.http.messages import Request, Response, problem

PREFLIGHT_S = 7_200
"""How long a browser need not ask again: the most that Chromium allows."""
ANY = "*"
LOCALHOST = "localhost"
KNOWN_HOSTS_MAX = 1_000
NAME_BYTES_MAX = 255 + len(":65535")

_OURS = (b"same-origin", b"none")
"""What Sec-Fetch-Site says of the node's own pages, and of an address that a person typed."""
_EXPOSED = b"Access-Control-Expose-Headers: *\r\n"
_NO_SNIFF = b"X-Content-Type-Options: nosniff\r\n"

Headers = Iterable[tuple[bytes, bytes]]


class CrossOriginGuard:
    """Refuses what foreign pages ask, and tells the header lines that browsers need."""

    def __init__(
        self,
        *,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
        linkable: Collection[bytes] = (),
    ) -> None:
        self._is_any_page = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self._linkable = frozenset(linkable)
        self.known_hosts: set[bytes] = set()
        """Of requests that came: what stands in their Host is a name of ours."""
        self.rename(hosts)
        is_by_origin = bool(origins) and not self._is_any_page
        self.plain = _NO_SNIFF + (b"Vary: Origin\r\n" if is_by_origin else b"")
        """For answers to requests that do not come from a page."""

    def __repr__(self) -> str:
        return f"<CrossOriginGuard {sorted(self._origins)} at {sorted(self._hosts)}>"

    def rename(self, hosts: Collection[str]) -> None:
        """Answer to these names from now on, and to no others."""
        self._is_any_host = ANY in hosts
        self._hosts = frozenset(host.lower() for host in hosts) | {LOCALHOST}
        self._domains = tuple(host for host in self._hosts if host.startswith("."))
        self.known_hosts.clear()

    def refusal(self, method: bytes, target: bytes, headers: Headers) -> Response | None:
        """Return what to answer to a request that may not be made; None if it may."""
        given = {name.lower(): value for name, value in headers}
        host = given.get(b"host", b"")
        if not self._is_our_name(host):
            shown = host.decode("latin-1")[:NAME_BYTES_MAX]
            detail = f"this node is not called {shown!r}: if it is, list that in server.hosts"
            return problem(421, detail, error="Forbidden", field="Host")
        is_linkable = method == b"GET" and target.partition(b"?")[0] in self._linkable
        if self._is_any_page or self._is_page_admitted(given, is_linkable=is_linkable):
            return None
        detail = "pages of other origins may not ask, unless server.cors_origins lists theirs"
        return problem(403, detail, error="Forbidden", field="Origin")

    def _is_our_name(self, host: bytes) -> bool:
        if host in self.known_hosts:
            return True
        name = _name_of(host.decode("latin-1").lower())
        is_ours = (
            self._is_any_host
            or name in self._hosts
            or name.endswith(self._domains)
            or _is_address(name)
        )
        if is_ours and len(self.known_hosts) < KNOWN_HOSTS_MAX and len(host) <= NAME_BYTES_MAX:
            self.known_hosts.add(host)
        return is_ours

    def _is_page_admitted(self, given: Mapping[bytes, bytes], *, is_linkable: bool) -> bool:
        origin = given.get(b"origin")
        if origin in self._origins:
            return True
        site = given.get(b"sec-fetch-site")
        if site is not None:
            is_link = given.get(b"sec-fetch-mode") == b"navigate"
            is_link = is_link and given.get(b"sec-fetch-dest") == b"document"
            return site in _OURS or (is_link and is_linkable)
        host = given.get(b"host")
        if origin is not None:
            return _authority_of(origin) == host
        if not _is_browser(given):
            return True
        return is_linkable or _authority_of(given.get(b"referer", b"")) == host

    def lines(self, origin: bytes | None) -> bytes:
        """Return the lines to add to an answer."""
        if origin is None:
            return self.plain
        if self._is_any_page:
            return self.plain + b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
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


def _name_of(host: str) -> str:
    """Return a Host without its port, and without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    # Without a Host, or with an empty one, no browser asks.
    if not name:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _authority_of(url: bytes) -> bytes:
    """Return host and port of an address, such as stand in a Host."""
    return url.partition(b"://")[2].partition(b"/")[0]


def _is_browser(given: Mapping[bytes, bytes]) -> bool:
    """Tell whether a browser asks: all of them send these two, whatever a page does about it.

    Some programs call themselves Mozilla (PowerShell), others name a language (Node.js).
    """
    return given.get(b"user-agent", b"").startswith(b"Mozilla/") and b"accept-language" in given
