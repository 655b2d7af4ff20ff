"""Paths with names in them, OPTIONS for all, and what listed pages are told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.http_client import raw_client
from tests.server.http_serving import get, guard_of, served
from waterclock.server.http.messages import Request, Response
from waterclock.server.http.routes import Routes, answer_from


def response(request: Request) -> Response:
    """Answer with the names of the path."""
    return Response(200, repr(sorted(request.params.items())).encode())


def named(text: bytes):
    return lambda request: Response(200, text + b" " + response(request).body)


ROUTES: Routes = {
    b"/topics": {b"GET": named(b"all"), b"POST": named(b"make")},
    b"/topics/{topic}": {b"GET": named(b"one")},
    b"/topics/{topic}/messages": {b"GET": named(b"messages")},
    b"/topics/{topic}/groups/{group}": {b"DELETE": named(b"group")},
    b"/topics/special": {b"GET": named(b"special")},
    b"/topics/special/{page}": {b"GET": named(b"page")},
}


def asked(path: bytes, method: bytes = b"GET", routes: Routes = ROUTES) -> Response:
    answered = answer_from(routes)(Request(method, path, b"", [], b""))
    assert isinstance(answered, Response)
    return answered


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (b"/topics", b"all []"),
        (b"/topics/a", b"one [('topic', 'a')]"),
        (b"/topics/a/messages", b"messages [('topic', 'a')]"),
        (b"/api/v1/topics/a/messages", b"messages [('topic', 'a')]"),
        (b"/topics/special", b"special []"),
        (b"/topics/special/messages", b"page [('page', 'messages')]"),
        (b"/topics/a%2Fb%20c/messages", b"messages [('topic', 'a/b c')]"),
        (b"/topics/%F0%9F%A6%86", "one [('topic', '🦆')]".encode()),
        (b"/t%6Fpics/a", b"one [('topic', 'a')]"),
        (b"/topics/a+b", b"one [('topic', 'a+b')]"),
    ],
)
def test_a_path_is_found_by_its_segments(path, answer):
    found = asked(path)

    assert (found.status, found.body) == (200, answer)


def test_where_a_name_and_a_word_both_lead_on_all_ways_are_tried():
    assert asked(b"/topics/special/groups/g", b"DELETE").body == (
        b"group [('group', 'g'), ('topic', 'special')]"
    )


@pytest.mark.parametrize(
    "path", [b"/", b"/topics/", b"/topics//messages", b"/topics/a/", b"/nowhere", b"topics", b""]
)
def test_what_is_no_path_of_ours_is_404(path):
    assert asked(path).status == 404


@pytest.mark.parametrize("path", [b"/topics/%zz", b"/topics/%", b"/topics/%ff", b"/topics/\xff"])
def test_a_path_that_is_no_text_is_400(path):
    assert asked(path).status == 400


@given(st.text(min_size=1))
def test_any_name_comes_through_when_it_is_encoded(name):
    encoded = b"".join(b"%%%02X" % byte for byte in name.encode("utf-8", "surrogatepass"))
    answer = asked(b"/topics/" + encoded)

    is_text = name.encode("utf-8", "ignore").decode() == name
    if is_text and name != "special":
        assert answer.body == f"one {[('topic', name)]!r}".encode()
    elif not is_text:
        assert answer.status == 400


@given(st.binary(max_size=30))
def test_no_path_breaks_the_search(path):
    assert asked(b"/" + path).status in (200, 400, 404)


def test_options_tells_what_is_allowed_everywhere():
    for path, allow in (
        (b"/topics", b"GET, HEAD, OPTIONS, POST"),
        (b"/api/v1/topics/a/groups/g", b"DELETE, OPTIONS"),
        (b"*", b"DELETE, GET, POST, OPTIONS"),
    ):
        answer = asked(path, b"OPTIONS")
        assert (answer.status, answer.headers) == (204, b"Allow: " + allow + b"\r\n")
    assert asked(b"/nowhere", b"OPTIONS").status == 404


async def test_an_answer_without_content_has_neither_length_nor_type():
    async with served(ROUTES) as server, raw_client(server.port) as client:
        answer = await client.ask(b"OPTIONS /topics HTTP/1.1\r\nHost: x\r\n\r\n")

        assert answer.status == 204
        assert set(answer.headers) == {"date", "allow", "x-content-type-options"}
        assert (await client.get("/topics")).status == 200


async def test_pages_of_any_origin_may_read_answers_if_so_configured():
    async with served(ROUTES, guard=guard_of("*")) as server, raw_client(server.port) as client:
        for path in ("/topics", "/nowhere"):
            page = await client.ask(get(path, "Origin: https://a.example"))
            assert page.headers["access-control-allow-origin"] == "*"
            assert page.headers["access-control-expose-headers"] == "*"
            assert "access-control-allow-credentials" not in page.headers
        plain = await client.get("/topics")
        assert "access-control-allow-origin" not in plain.headers
        assert "vary" not in plain.headers


async def test_a_browser_is_told_before_it_asks():
    async with served(ROUTES, guard=guard_of("*")) as server, raw_client(server.port) as client:
        answer = await client.ask(
            b"OPTIONS /topics HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n"
            b"Access-Control-Request-Method: POST\r\n"
            b"Access-Control-Request-Headers: content-type, x-mine\r\n\r\n"
        )

        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS, POST"
        assert answer.headers["access-control-allow-headers"] == "content-type, x-mine"
        assert int(answer.headers["access-control-max-age"]) > 0


async def test_only_pages_on_the_list_may_read_if_there_is_one():
    guard = guard_of("https://a.example", "https://b.example")
    async with served(ROUTES, guard=guard) as server, raw_client(server.port) as client:
        friend = await client.ask(get("/topics", "Origin: https://b.example"))
        plain = await client.get("/topics")
        stranger = await client.ask(get("/topics", "Origin: https://c.example"))

        assert friend.headers["access-control-allow-origin"] == "https://b.example"
        assert "access-control-allow-origin" not in stranger.headers
        assert {a.headers["vary"] for a in (friend, stranger, plain)} == {"Origin"}


async def test_a_page_may_read_why_it_was_refused():
    async with served(ROUTES, guard=guard_of("*")) as server, raw_client(server.port) as client:
        answer = await client.ask(
            b"POST /topics HTTP/1.1\r\nOrigin: https://a.example\r\n"
            b"Content-Length: 999999999\r\n\r\n"
        )

        assert answer.status == 413
        assert answer.headers["access-control-allow-origin"] == "*"


def test_no_head_where_a_route_says_so():
    routes: Routes = {b"/take": {b"GET": named(b"take"), b"HEAD": None}}

    refused = asked(b"/take", b"HEAD", routes)

    assert (refused.status, refused.headers) == (405, b"Allow: GET, OPTIONS\r\n")
