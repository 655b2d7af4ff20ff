"""Calls without gRPC's library: the wire, what is tried again, and where."""

import socket
import threading

import pytest

from tests.client.http2_node import answered, frame, http2_node, refused
from waterclock.client.errors import NotConnected, UnusableAddress
from waterclock.client.settings import ClientSettings
from waterclock.client.unary.client import UnaryClient
from waterclock.client.unary.connection import finished
from waterclock.client.unary.hpack import BadHeaders, decoded, encoded
from waterclock.model.errors import NotAuthenticated, UnknownTopic, Unreachable
from waterclock.v1 import broker_pb2

QUICK = ClientSettings(retry_delay_ms=1, retry_delay_ms_max=1)
STORED = broker_pb2.PublishResponse(partition=0, offset=7, message_id=b"id", is_new=True)


def of_node(node, path, message, stream):
    """Answer as a node that stores what is published."""
    if path.endswith("/GetNode"):
        return answered(node.info(), stream=stream)
    node.published.append(broker_pb2.PublishRequest.FromString(message))
    return answered(STORED.SerializeToString(), stream=stream)


# Headers


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        # RFC 7541, C.4.1 and C.6.1, but for entries of a dynamic table.
        ("828684418cf1e3c2e5f23a6ba0ab90f4ff", [(":authority", "www.example.com")]),
        ("4882640258 85aec3771a4b", [(":status", "302"), ("cache-control", "private")]),
        ("000a637573746f6d2d6b65790d637573746f6d2d686561646572", [("custom-key", "custom-header")]),
        ("200000", []),  # a new size of the table, then an empty header
    ],
)
def test_headers_are_read_as_the_rfc_writes_them(block, headers):
    if block == "200000":
        assert decoded(bytes.fromhex("20")) == headers
    else:
        assert decoded(bytes.fromhex(block))[-len(headers) :] == headers


def test_headers_are_read_as_they_were_written():
    headers = [(":path", "/a"), ("authorization", "x" * 500), ("empty", "")]

    assert decoded(encoded(headers)) == headers


@pytest.mark.parametrize("block", ["be", "41", "0005", "7fffffffffff7f", "ff8080808080808001"])
def test_what_are_no_headers_is_one_error(block):
    with pytest.raises(BadHeaders):
        decoded(bytes.fromhex(block))


# Publishing


def test_a_message_is_published_and_its_receipt_returned():
    with http2_node(of_node) as node, UnaryClient(node.address, QUICK) as client:
        receipt = finished(client.publish("orders", b"hello", key=b"ada", acks="all"))

    (request,) = node.published
    assert request.acks == broker_pb2.ACKS_ALL
    assert (receipt.partition, receipt.offset, receipt.is_new) == (0, 7, True)
    assert (request.topic, request.message.value, request.message.key) == (
        "orders", b"hello", b"ada",
    )  # fmt: skip


def test_a_publish_whose_answer_is_lost_goes_to_another_node_under_the_same_id():
    def lost(node, path, message, stream):
        if path.endswith("/GetNode"):
            return answered(node.info(node.address, other.address), stream=stream)
        node.published.append(broker_pb2.PublishRequest.FromString(message))
        return None

    with (
        http2_node(of_node) as other,
        http2_node(lost) as first,
        UnaryClient(first.address, QUICK) as client,
    ):
        receipt = finished(client.publish("orders", b"hello"))

    assert receipt.offset == 7
    assert len(first.published) == len(other.published) == 1
    assert first.published[0].message.message_id == other.published[0].message.message_id != b""


def test_a_large_message_keeps_to_the_windows_of_the_node():
    with http2_node(of_node) as node:
        node.rooms = [200_000] + [0x4000] * 4
        with UnaryClient(node.address, QUICK) as client:
            finished(client.publish("orders", b"x" * 200_000))

    assert node.published[0].message.value == b"x" * 200_000
    assert max(node.window_sizes) <= 0x4000


def test_a_node_that_takes_no_more_calls_is_asked_by_a_new_connection():
    has_gone: list[str] = []

    def going(node, path, message, stream):
        if path.endswith("/Publish") and not has_gone:
            has_gone.append(path)
            return frame(7, 0, 0, (1).to_bytes(4) + bytes(4))
        return of_node(node, path, message, stream)

    with http2_node(going) as node, UnaryClient(node.address, QUICK) as client:
        assert finished(client.publish("orders", b"hello")).offset == 7

    assert has_gone


# Errors


def test_an_error_is_the_one_that_the_node_raised():
    def unknown(node, path, message, stream):
        if path.endswith("/GetNode"):
            return of_node(node, path, message, stream)
        facts = [
            ("grpc-message", "there is no topic %27x%27"),
            ("waterclock-error", "UnknownTopic"),
        ]
        return refused(5, *facts, stream=stream)

    with (
        http2_node(unknown) as node,
        UnaryClient(node.address, QUICK) as client,
        pytest.raises(UnknownTopic, match="there is no topic 'x'"),
    ):
        finished(client.topics.get("x"))


def test_what_is_not_safe_to_repeat_is_not_repeated():
    asked = []

    def ends_at_once(node, path, message, stream):
        if path.endswith("/GetNode"):
            return of_node(node, path, message, stream)
        asked.append(path)
        return None

    with (
        http2_node(ends_at_once) as node,
        UnaryClient(node.address, QUICK) as client,
        pytest.raises(Unreachable),
    ):
        finished(client.dead_letters.redrive("orders"))

    assert asked == ["/waterclock.v1.Admin/Redrive"]


def test_nobody_there_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    with pytest.raises(NotConnected, match="Connection refused"):
        UnaryClient(f"127.0.0.1:{port}").__enter__()


@pytest.mark.parametrize(
    ("greeting", "error", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", UnusableAddress, "speaks HTTP"),
        (b"220 mail.example.com ESMTP\r\n", UnusableAddress, "does not speak gRPC"),
        (b"\x15\x03\x03\x00\x02\x02\x46", NotAuthenticated, "speaks TLS"),
    ],
)
def test_what_is_no_node_is_told_by_how_it_answers(greeting, error, words):
    def greet():
        connection, _ = server.accept()
        with connection:
            connection.recv(1_000)
            connection.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(error, match=words):
            UnaryClient(f"127.0.0.1:{server.getsockname()[1]}", QUICK).__enter__()
        thread.join()


def test_a_coroutine_that_waits_is_refused():
    class Never:
        def __await__(self):
            yield

    async def wait():
        await Never()

    with pytest.raises(AssertionError, match="needs a loop"):
        finished(wait())
