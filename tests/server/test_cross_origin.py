"""Pages that a browser shows use a node only if they are its own or listed; programs always do."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.http_client import raw_client
from tests.server.http_serving import served
from tests.server.served import running_server
from waterclock.model.sections import ServerConfig
from waterclock.server.http.cross_origin import KNOWN_HOSTS_MAX, CrossOriginGuard
from waterclock.server.http.messages import Request, Response
from waterclock.server.http.routes import Routes

TAKING = b"/topics/orders/messages?group=billing&ack=auto"
EVIL, FRIEND = b"http://evil.example", b"https://app.example.com"
CHROMIUM = {
    b"User-Agent": b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/156.0.0.0",
    b"Accept-Language": b"en-US,en;q=0.9",
}


def guard_of(*origins: bytes, hosts: tuple[str, ...] = ()) -> CrossOriginGuard:
    return CrossOriginGuard(
        origins=[origin.decode() for origin in origins], hosts=hosts, linkable=[b"/docs"]
    )


def status(
    guard: CrossOriginGuard,
    method: bytes = b"GET",
    target: bytes = TAKING,
    host: bytes = b"localhost:8080",
    **headers: bytes,
) -> int:
    """Return what a request with these headers is refused with, 200 if it is not."""
    given = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    refusal = guard.refusal(method, target, [(b"Host", host), *given.items()])
    return 200 if refusal is None else refusal.status


def from_browser(**headers: bytes) -> dict[str, bytes]:
    return {name.decode().replace("-", "_"): value for name, value in CHROMIUM.items()} | headers


# Names


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"localhost:8080",
        b"LocalHost.:8080",
        b"127.0.0.1:8080",
        b"127.0.0.2",
        b"[::1]:8080",
        b"[fe80::1%25eth0]",
        b"10.42.0.17:8080",  # of a pod, as Kubernetes probes it
        b"192.168.1.5:30080",  # of a machine whose port leads into a container
        b"[2001:db8::7]:8080",
        b"",
    ],
)
def test_an_address_and_localhost_are_names_of_every_node(host):
    assert status(guard_of(), host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"evil.example:8080",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example",
        b"127.0.0.1.nip.io:8080",
        b"xlocalhost",
        b"[evil.example]",
        b"127.0.0.1@evil.example",
        b"2130706433",
        b"\xff\xfe",
    ],
)
def test_a_request_to_another_name_is_refused_whoever_asks(host):
    guard = guard_of()

    assert status(guard, host=host) == 421
    assert status(guard, host=host, Origin=b"http://" + host) == 421
    assert status(guard, host=host, Sec_Fetch_Site=b"same-origin") == 421
    assert status(guard_of(b"*"), host=host) == 421
    assert guard.known_hosts == set()


def test_names_are_listed_one_by_one_by_domain_or_all_at_once():
    listed = guard_of(hosts=("Node1.example.com", ".svc.cluster.local"))

    assert status(listed, host=b"node1.EXAMPLE.com:8080") == 200
    assert status(listed, host=b"waterclock-0.waterclock.prod.svc.cluster.local:8080") == 200
    assert status(listed, host=b"node2.example.com") == 421
    assert status(listed, host=b"evilsvc.cluster.local") == 421
    assert status(guard_of(hosts=("*",)), host=b"evil.example") == 200


def test_a_refused_name_is_sent_with_the_setting_that_would_let_it_in():
    refusal = guard_of().refusal(b"GET", b"/topics", [(b"Host", b"gateway:8080")])

    assert refusal is not None
    assert b"this node is not called 'gateway:8080': if it is, list that in server.hosts" in (
        refusal.body
    )


def test_names_that_were_seen_are_remembered_up_to_a_bound():
    guard = guard_of()
    for number in range(KNOWN_HOSTS_MAX + 10):
        assert status(guard, host=b"127.0.0.1:%d" % number) == 200

    assert len(guard.known_hosts) == KNOWN_HOSTS_MAX


# Pages


@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"whatever-comes-next"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST", b"DELETE", b"OPTIONS"])
def test_a_page_of_another_site_is_refused_whether_it_tells_its_origin_or_not(site, method):
    for guard in (guard_of(), guard_of(FRIEND)):
        assert status(guard, method, Sec_Fetch_Site=site) == 403
        assert status(guard, method, Sec_Fetch_Site=site, Origin=EVIL) == 403
        assert status(guard, method, Sec_Fetch_Site=site, Origin=b"null") == 403


@pytest.mark.parametrize("site", [b"same-origin", b"none"])
def test_own_pages_and_typed_addresses_pass(site):
    assert status(guard_of(), Sec_Fetch_Site=site) == 200
    # A proxy may have changed the Host: what the browser says of the page holds.
    assert status(guard_of(), b"POST", Sec_Fetch_Site=site, Origin=b"https://proxy.example") == 200


@pytest.mark.parametrize(
    ("origin", "answer"),
    [
        (b"http://localhost:8080", 200),
        (b"https://localhost:8080", 200),
        (FRIEND, 200),
        (b"http://localhost", 403),
        (b"http://localhost:3000", 403),
        (b"http://app.example.com", 403),
        (b"https://app.example.com.evil.example", 403),
        (b"null", 403),
        (b"", 403),
    ],
)
def test_an_older_browser_is_judged_by_the_origin_it_tells(origin, answer):
    assert status(guard_of(FRIEND), b"POST", Origin=origin) == answer


def test_a_listed_page_passes_where_it_tells_its_origin():
    listed = guard_of(FRIEND)

    assert status(listed, b"DELETE", Sec_Fetch_Site=b"cross-site", Origin=FRIEND) == 200
    assert status(listed, Sec_Fetch_Site=b"cross-site") == 403  # an image: of which page?


def test_a_browser_that_tells_neither_site_nor_origin_passes_with_a_referer_of_ours_only():
    ours, theirs = b"http://localhost:8080/docs", b"http://evil.example/localhost:8080"

    for method in (b"GET", b"POST"):
        assert status(guard_of(), method, **from_browser()) == 403
        assert status(guard_of(), method, **from_browser(Referer=theirs)) == 403
        assert status(guard_of(), method, **from_browser(Referer=ours)) == 200
    assert status(guard_of(), target=b"/docs?x=1", **from_browser()) == 200


def test_with_any_page_allowed_none_is_refused():
    anyone = guard_of(b"*")

    assert status(anyone, b"POST", Sec_Fetch_Site=b"cross-site", Origin=EVIL) == 200
    assert status(anyone, Sec_Fetch_Site=b"cross-site") == 200
    assert status(anyone, **from_browser()) == 200


@pytest.mark.parametrize(
    "agent",
    [b"curl/8.14.1", b"Prometheus/3.5.0", b"kube-probe/1.34", b"Go-http-client/1.1", b"node"],
)
def test_programs_pass(agent):
    for method in (b"GET", b"POST", b"DELETE"):
        assert status(guard_of(), method, User_Agent=agent, Accept_Language=b"*") == 200
    powershell = b"Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1"
    assert status(guard_of(), b"POST", User_Agent=powershell) == 200


def link(method: bytes = b"GET", target: bytes = b"/docs", **changed: bytes) -> int:
    says = {
        "Sec_Fetch_Site": b"cross-site",
        "Sec_Fetch_Mode": b"navigate",
        "Sec_Fetch_Dest": b"document",
    }
    return status(guard_of(), method, target, **says | changed)


def test_a_link_leads_to_what_only_shows_something():
    assert link() == 200
    assert link(target=b"/docs?from=wiki") == 200
    assert link(target=TAKING) == 403
    assert link(b"POST") == 403
    assert link(Sec_Fetch_Mode=b"no-cors") == 403
    assert link(Sec_Fetch_Dest=b"iframe") == 403


# What a browser can be made to send


@dataclass(frozen=True)
class Asked:
    """A request as a browser makes it for a page, and what is true of it."""

    page: bytes
    host: bytes
    method: bytes
    is_link: bool
    target: bytes
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    host = draw(st.sampled_from([b"localhost:8080", b"[::1]:8080", b"evil.example"]))
    page = draw(st.sampled_from([b"http://" + host, EVIL, FRIEND, b"http://localhost:3000"]))
    is_same = page == b"http://" + host
    mode = draw(st.sampled_from([b"cors", b"no-cors", b"navigate"]))
    method = draw(st.sampled_from([b"GET", b"POST"] + [b"DELETE"] * (mode == b"cors")))
    dest = draw(st.sampled_from([b"document", b"iframe"])) if mode == b"navigate" else b"image"
    headers = [(b"Host", host), *CHROMIUM.items()]
    # https://www.w3.org/TR/fetch-metadata: none on plain HTTP, but for loopback.
    if host != b"evil.example" and draw(st.booleans()):
        others = b"same-site" if page.startswith(b"http://localhost") else b"cross-site"
        site = b"same-origin" if is_same else others
        headers += [(b"Sec-Fetch-Site", site), (b"Sec-Fetch-Mode", mode), (b"sec-fetch-dest", dest)]
    # https://fetch.spec.whatwg.org/#origin-header: a page can have it hidden, and not forged.
    if method != b"GET" or (mode == b"cors" and not is_same):
        is_sent = mode == b"cors" or draw(st.booleans())
        headers.append((b"Origin", page if is_sent else b"null"))
    if draw(st.booleans()):
        headers.append((b"Referer", page + draw(st.sampled_from([b"/", b"/localhost:8080/"]))))
    is_link = method == b"GET" and draw(st.booleans())
    target = b"/docs" if is_link else TAKING
    return Asked(page, host, method, is_link, target, draw(st.permutations(headers)))


@given(asked())
def test_nothing_that_a_foreign_page_can_have_a_browser_send_passes(one):
    refusal = guard_of(FRIEND).refusal(one.method, one.target, one.headers)

    if one.host == b"evil.example":
        assert refusal is not None
        assert refusal.status == 421
    elif one.page not in (FRIEND, b"http://" + one.host):
        assert one.is_link or refusal is not None
        assert refusal is None or refusal.status == 403
    elif {(b"Origin", one.page), (b"Sec-Fetch-Site", b"same-origin")} & {*one.headers}:
        assert refusal is None


@given(
    st.dictionaries(
        st.sampled_from([b"Accept", b"Content-Type", b"Referer", b"Accept-Language", b"X-Any"]),
        st.binary(max_size=20),
    ),
    st.sampled_from([b"GET", b"POST", b"DELETE"]),
)
def test_no_other_header_keeps_a_program_out(headers, method):
    given = [(b"Host", b"127.0.0.1:8080"), (b"User-Agent", b"curl/8.14.1"), *headers.items()]

    assert guard_of().refusal(method, TAKING, given) is None


# Over a connection


def request(method: str, *headers: str, body: str = "", host: str = "localhost") -> bytes:
    lines = "".join(f"{line}\r\n" for line in (f"Host: {host}", *headers))
    return f"{method} /orders HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def test_a_refused_request_does_nothing_and_ends_its_connection():
    made: list[bytes] = []

    def make(request: Request) -> Response:
        made.append(request.body)
        return Response(200)

    routes: Routes = {b"/orders": {b"GET": make, b"POST": make, b"DELETE": make}}
    attempts = {
        request("POST", "Origin: http://evil.example", "Content-Type: text/plain", body="{}"): 403,
        request("POST", "origin: null", body="a=b"): 403,
        request("GET", "sec-fetch-SITE: cross-site"): 403,
        request("DELETE", "Sec-Fetch-Site: same-site", "Origin: http://localhost:1"): 403,
        request("GET", "User-Agent: Mozilla/5.0", "Accept-Language: de"): 403,
        request("GET", host="evil.example"): 421,
        request("GET", "Connection: upgrade", "Upgrade: websocket", host="evil.example"): 421,
        request("POST", "Origin: http://localhost", body="own"): 200,
        request("POST", "Content-Type: application/x-www-form-urlencoded", body="curl"): 200,
    }
    async with served(routes, guard=CrossOriginGuard()) as server:
        for sent, expected in attempts.items():
            async with raw_client(server.port) as client:
                answer = await client.ask(sent)
                assert (answer.status, sent) == (expected, sent)
                assert "access-control-allow-origin" not in answer.headers
                if expected != 200:
                    assert answer.json()["error"] == "Forbidden"
                    assert await client.is_closed()

    assert made == [b"own", b"curl"]


async def test_a_request_is_refused_at_its_head_and_behind_earlier_answers():
    routes: Routes = {b"/orders": {b"GET": lambda _: Response(200, b"first")}}
    head = b"POST /orders HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nContent-Length: 9\r\n\r\n"
    async with (
        served(routes, guard=CrossOriginGuard()) as server,
        raw_client(server.port) as client,
    ):
        assert (await client.ask(request("GET") + head)).body == b"first"
        assert (await client.answer()).status == 403


async def test_every_answer_tells_browsers_not_to_guess_its_type(tmp_path):
    async with running_server(tmp_path) as it:
        for path in ("/topics", "/docs", "/metrics", "/nowhere", "/streams/events?streamId=s"):
            async with raw_client(it.server.http_port) as client:
                client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                _, headers = await client.head()
                assert (path, headers["x-content-type-options"]) == (path, "nosniff")


async def test_the_page_of_the_node_may_load_nothing_and_be_framed_by_nobody(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        headers = (await client.get("/docs")).headers
        policy = headers["content-security-policy"].split("; ")

        assert policy[0] == "default-src 'none'"
        assert policy[1].startswith("style-src 'sha256-")
        assert policy[2:] == ["base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"]
        assert headers["referrer-policy"] == "same-origin"


async def test_a_node_has_the_names_it_is_configured_with(tmp_path):
    server = ServerConfig(hosts=("gateway.example",), host="127.0.0.1")
    asked = "GET /node HTTP/1.1\r\nHost: {}:8080\r\nConnection: close\r\n\r\n"
    async with running_server(tmp_path, server=server) as it:
        answers = {}
        for host in ("gateway.example", "127.0.0.1", "localhost", "evil.example"):
            async with raw_client(it.server.http_port) as client:
                answers[host] = (await client.ask(asked.format(host).encode())).status

    assert answers == {
        "gateway.example": 200, "127.0.0.1": 200, "localhost": 200, "evil.example": 421,
    }  # fmt: skip


async def test_links_lead_to_the_pages_for_people_alone(tmp_path):
    says = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document"
    async with running_server(tmp_path) as it:
        async with raw_client(it.server.http_port) as client:
            described = (await client.get("/openapi.json")).json()
        passed = set()
        for path in (path for path, methods in described["paths"].items() if "get" in methods):
            async with raw_client(it.server.http_port) as client:
                client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{says}\r\n\r\n".encode())
                status, _ = await client.head()
                if status != 403:
                    passed.add(path)

    healths = {"/health", "/health/live", "/health/ready"}
    assert passed == {"/", "/docs", "/openapi.json", "/metrics", *healths}
