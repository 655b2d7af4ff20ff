"""A secure node over HTTP: TLS, who is let in, and how soon somebody is not any more."""

import json
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.secure_serving import CLOCK, SecureNode, secure_node
from waterclock.security.certificates import make_ca, make_client_certificate
from waterclock.security.quotas import Quotas
from waterclock.security.tls import client_context


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("node")) as node:
        yield node


def raw(node: SecureNode) -> ssl.SSLSocket:
    """Return a connection to send bytes over as they are."""
    plain = socket.create_connection(("127.0.0.1", node.port), timeout=30)
    return node.context.wrap_socket(plain, server_hostname="127.0.0.1")


def said(connection: ssl.SSLSocket) -> bytes:
    """Return all that comes until the node closes."""
    whole = b""
    while data := connection.recv(65_536):
        whole += data
    return whole


def test_tls_1_3_is_spoken_and_nothing_older(node: SecureNode) -> None:
    with raw(node) as connection:
        assert connection.version() == "TLSv1.3"

    older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    older.load_verify_locations(cafile=node.folder.ca)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    plain = socket.create_connection(("127.0.0.1", node.port), timeout=30)
    with pytest.raises(ssl.SSLError), plain:
        older.wrap_socket(plain, server_hostname="localhost")


def test_plain_http_gets_no_answer(node: SecureNode) -> None:
    with socket.create_connection(("127.0.0.1", node.port), timeout=30) as plain:
        plain.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            got = plain.recv(100)
        except ConnectionResetError:
            got = b""
        assert b"HTTP" not in got


def test_health_and_documentation_are_for_everyone(node: SecureNode) -> None:
    for path in ("/health/live", "/health/ready", "/docs", "/openapi.json", "/api/v1/docs"):
        assert node.ask("GET", path, None).status == 200
    assert node.ask("GET", "/metrics", None).status == 401


def test_who_is_not_known_is_told_how_to_be_and_may_ask_again(node: SecureNode) -> None:
    connection = node.connect()
    refused = node.ask("GET", "/topics", None, connection=connection)

    assert refused.status == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "connection" not in refused.headers, "it goes on: there was no body"
    assert refused.json()["error"] == "NotAuthenticated"
    assert node.ask("GET", "/topics", node.admin, connection=connection).status == 200
    connection.close()


@pytest.mark.parametrize("announced", ["Content-Length: 9000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", ["/topics/orders/messages", "/health/live"])
def test_a_body_of_who_is_not_known_is_refused_at_the_head(
    node: SecureNode, announced: str, path: str
) -> None:
    with raw(node) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{announced}\r\n\r\n"
        connection.sendall(head.encode())  # and no byte of the body

        answer = said(connection)

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in answer


def test_who_waits_for_100_continue_is_refused_instead(node: SecureNode) -> None:
    with raw(node) as connection:
        connection.sendall(
            b"POST /topics/x/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert said(connection).startswith(b"HTTP/1.1 401 ")


def test_of_two_credentials_none_counts(node: SecureNode) -> None:
    with raw(node) as connection:
        line = f"Authorization: {node.admin}\r\n" * 2
        connection.sendall(
            f"GET /topics HTTP/1.1\r\nHost: localhost\r\n{line}Connection: close\r\n\r\n".encode()
        )
        assert said(connection).startswith(b"HTTP/1.1 401 ")


def test_a_client_is_known_by_its_certificate(node: SecureNode, tmp_path: Path) -> None:
    node.add("ada", read="orders")
    node.folder.certify("ada", tmp_path, now_ms=CLOCK.now_ms())
    context = client_context(
        node.folder.ca.read_bytes(), tmp_path / "ada.pem", tmp_path / "ada.key"
    )
    connection = node.connect(context)
    assert node.ask("GET", "/topics", None, connection=connection).status == 200
    denied = node.ask("DELETE", "/topics/orders", None, connection=connection)
    assert (denied.status, denied.json()["principal"]) == (403, "ada")

    node.folder.revoke("ada")
    node.reload()
    assert node.ask("GET", "/topics", None, connection=connection).status == 401
    connection.close()


def test_a_certificate_of_another_ca_is_refused(node: SecureNode, tmp_path: Path) -> None:
    pair = make_client_certificate(
        make_ca("other", now_ms=CLOCK.now_ms()), "admin", now_ms=CLOCK.now_ms()
    )
    (tmp_path / "a.pem").write_bytes(pair.certificate_pem)
    (tmp_path / "a.key").write_bytes(pair.key_pem)
    context = client_context(node.folder.ca.read_bytes(), tmp_path / "a.pem", tmp_path / "a.key")
    connection = node.connect(context)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        node.ask("GET", "/topics", None, connection=connection)
    connection.close()


def test_an_answer_in_many_pieces_comes_whole_over_tls(node: SecureNode) -> None:
    for _ in range(2):
        large = {"value": "x" * 5_000_000, "partition": 0}
        assert node.ask("POST", "/topics/large/messages", node.admin, large).status == 201

    answer = node.ask("GET", "/topics/large/partitions/0/frames?bytesMax=33554432", node.admin)

    assert len(answer.body) == int(answer.headers["content-length"]) > 10_000_000


def test_revoking_ends_a_poll_that_waits(node: SecureNode) -> None:
    bearer = node.add("poller", consume="polled:g")
    with raw(node) as connection:
        connection.sendall(
            b"GET /topics/polled/messages?group=g&wait=5m HTTP/1.1\r\nHost: localhost\r\n"
            + f"Authorization: {bearer}\r\n\r\n".encode()
        )
        _until_busy(node)
        node.folder.revoke("poller")  # the node notices by itself

        answer = said(connection)

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"revoked" in answer


@pytest.mark.parametrize(
    "path", ["/topics/heard/events?group=g", "/streams/events?streamId=heard&timeout=5m"]
)
def test_revoking_ends_an_open_stream_of_events(node: SecureNode, path: str) -> None:
    bearer = node.add("listener", consume="heard")
    with raw(node) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n\r\n".encode()
        )
        assert connection.recv(4_096).startswith(b"HTTP/1.1 200 ")
        node.folder.revoke("listener")

        try:
            rest = said(connection)
        except (ssl.SSLError, ConnectionError):
            rest = b""

    assert b"0\r\n\r\n" not in rest, "cut off, not ended well"


def test_a_right_that_is_taken_ends_what_it_was_for_and_nothing_else(node: SecureNode) -> None:
    kept = node.add("kept", consume="both")
    path = "/streams/receive?streamId=both&timeout=5m"
    with raw(node) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {kept}\r\n\r\n".encode()
        )
        _until_busy(node)
        node.add("another", read="x")
        sent = node.ask(
            "POST", "/streams/send", node.admin, {"streamId": "both", "message": "hello"}
        )
        assert sent.status == 200
        assert connection.recv(4_096).startswith(b"HTTP/1.1 200 ")


def test_rotating_the_certificate_and_keys_fails_no_request(node: SecureNode) -> None:
    bearer = node.add("rotated", publish="rotated")
    failed: list[object] = []
    is_over = threading.Event()
    done = [0]

    def publish() -> None:
        while not is_over.is_set():
            try:
                answer = node.ask("POST", "/topics/rotated/messages", bearer, {"value": "x"})
                if answer.status != 201:
                    failed.append(answer)
            except Exception as error:
                failed.append(error)
            done[0] += 1

    before = _certificate(node)
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(3):
            node.folder.rotate(now_ms=CLOCK.now_ms())
            reloads, asked = node.server.access.reloads, done[0]
            _until(lambda: node.server.access.reloads > reloads and done[0] > asked)  # noqa: B023
    finally:
        is_over.set()
        thread.join()

    assert failed == []
    assert _certificate(node) != before


def test_a_reload_that_fails_keeps_the_certificate_and_the_principals(node: SecureNode) -> None:
    kept = node.folder.path.with_name("kept")
    shutil.copytree(node.folder.path, kept)
    node.folder.node_key.write_text("no key")
    try:
        with pytest.raises(AssertionError):
            node.reload()
        assert node.ask("GET", "/topics", node.admin).status == 200
    finally:
        shutil.copy(kept / "node.key", node.folder.node_key)
        node.reload()


def test_a_name_that_the_certificate_gets_is_one_to_call_the_node_by(node: SecureNode) -> None:
    def status() -> int:
        connection = node.connect()
        connection.putrequest("GET", "/health/live", skip_host=True)
        connection.putheader("Host", "node-7.example")
        connection.endheaders()
        status = connection.getresponse().status
        connection.close()
        return status

    assert status() == 421
    node.folder.rotate(hosts=["node-7.example"], now_ms=CLOCK.now_ms())
    node.reload()
    assert status() == 200


def test_a_body_that_was_begun_before_its_sender_was_revoked_is_not_taken(node: SecureNode) -> None:
    bearer = node.add("writer", publish="written")
    with raw(node) as connection:
        connection.sendall(
            b"POST /topics/written/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n"
            + f"Authorization: {bearer}\r\nConnection: close\r\n\r\n".encode()
            + b'{"value"'
        )
        _until(lambda: any(each._body_bytes for each in tuple(node.server._http.connections)))
        node.folder.revoke("writer")
        node.reload()
        connection.sendall(b':"x"}')

        assert said(connection).startswith(b"HTTP/1.1 401 ")
    assert node.ask("GET", "/topics/written", node.admin).status == 404


def test_a_body_in_chunks_counts_too(node: SecureNode) -> None:
    bearer = node.add("chunked", Quotas(bytes_per_s=100), publish="chunked")
    connection = node.connect()

    def status() -> int:
        pieces = iter([b'{"value":"', b"x" * 500, b'"}'])
        connection.request(
            "POST", "/topics/chunked/messages", pieces, {"Authorization": bearer},
            encode_chunked=True,
        )  # fmt: skip
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert [status(), status()] == [201, 429]
    connection.close()


def test_requests_over_the_quota_are_429_and_say_when_to_come_back(node: SecureNode) -> None:
    bearer = node.add("hasty", Quotas(requests_per_s=1), read="orders")
    connection = node.connect()
    first, _, last = (node.ask("GET", "/topics", bearer, connection=connection) for _ in range(3))

    assert (first.status, last.status) == (200, 429)
    assert last.headers["retry-after"] == "1"
    assert node.ask("GET", "/health/live", bearer, connection=connection).status == 200
    connection.close()


def test_a_body_over_the_rate_is_refused_at_the_head(node: SecureNode) -> None:
    bearer = node.add("slow", Quotas(bytes_per_s=1_000), publish="slow")
    first = node.ask("POST", "/topics/slow/messages", bearer, {"value": "x" * 5_000})
    assert first.status == 201, "more than a second's worth is taken once, and leaves a debt"

    with raw(node) as connection:
        connection.sendall(
            b"POST /topics/slow/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            + f"Authorization: {bearer}\r\n\r\n".encode()
        )
        answer = said(connection)

    assert answer.startswith(b"HTTP/1.1 429 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "QuotaExceeded"


def test_connections_of_a_principal_are_counted_until_they_close(node: SecureNode) -> None:
    bearer = node.add("one", Quotas(connections=1), read="orders")
    first, second = node.connect(), node.connect()
    assert node.ask("GET", "/topics", bearer, connection=first).status == 200
    refused = node.ask("GET", "/topics", bearer, connection=second)
    assert (refused.status, refused.headers.get("connection")) == (429, "close")
    first.close()
    _until(lambda: node.ask("GET", "/topics", bearer, connection=second).status == 200)
    second.close()


def test_what_a_principal_makes_is_counted(node: SecureNode) -> None:
    quotas = Quotas(topics=2, partitions=3, groups=1, streams=1)
    bearer = node.add("maker", quotas, publish="made.*", consume="made.*:made.*")

    def status(method: str, path: str, body: object = None) -> int:
        return node.ask(method, path, bearer, body).status

    assert status("POST", "/topics", {"topic": "made.a", "partitions": 1}) == 201
    assert status("POST", "/topics", {"topic": "made.b", "partitions": 3}) == 429, "partitions"
    assert status("POST", "/topics", {"topic": "made.b", "partitions": 2}) == 201
    assert status("POST", "/topics/made.c/messages", {"value": "x"}) == 429, "topics"
    assert status("POST", "/topics/made.a/messages", {"value": "x"}) == 201
    assert status("GET", "/topics/made.a/messages?group=made.g&wait=0s") == 200
    assert status("GET", "/topics/made.a/messages?group=made.h&wait=0s") == 429, "groups"
    assert status("GET", "/topics/made.a/messages?group=made.g&wait=0s") == 200
    one = {"message": 1, "inMemoryStreamSize": 5}
    assert status("POST", "/streams/send", {"streamId": "made.s", **one}) == 200
    assert status("POST", "/streams/send", {"streamId": "made.t", **one}) == 429, "streams"
    assert status("POST", "/streams/send", {"streamId": "made.s", **one}) == 200


def _certificate(node: SecureNode) -> bytes:
    with raw(node) as connection:
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def _until_busy(node: SecureNode) -> None:
    _until(lambda: any(each.is_busy for each in tuple(node.server._http.connections)))


def _until(claim: Callable[[], object]) -> None:
    pause = threading.Event()
    while not claim():
        pause.wait(0.01)
