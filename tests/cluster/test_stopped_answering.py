"""Nodes that go on over open channels when a node has stopped to answer hear that it stops."""

from types import SimpleNamespace
from typing import Any

from waterclock.cluster.forwarded import ForwardedRequest
from waterclock.cluster.remote_publishes import PublishHead, SentBatch
from waterclock.server.cluster.answering import Answering
from waterclock.server.cluster.calls.publish_answering import PublishAnswering


class Channel:
    """A channel of another node."""

    listener: Any = None

    def __init__(self) -> None:
        self.refused: list[str] = []

    def grant(self, size: int) -> None: ...

    def cancel(self, reason: str) -> None:
        self.refused.append(reason)


def test_a_batch_is_refused():
    channel: Any = Channel()
    limits = SimpleNamespace(batch_bytes_max=1_000)
    node: Any = SimpleNamespace(config=SimpleNamespace(limits=limits))
    nothing: Any = None
    publishes = PublishAnswering(node, nothing, tasks=nothing)
    publishes.requested(channel, PublishHead("t", 0).encode(), is_last=False)

    publishes.end()
    channel.listener.piece(SentBatch(1, False, "quorum", b"x").encode(), is_last=False)

    assert channel.refused == ["the node stops"]


def test_a_request_that_was_arriving_is_refused():
    channel: Any = Channel()
    nothing: Any = None
    answering = Answering(nothing, nothing, body_bytes_max=1_000)
    data = ForwardedRequest(1_000, b"GET", b"/streams", b"", b"", b"").encode()
    answering.requested(channel, data[:10], is_last=False)

    answering.end()
    channel.listener.piece(data[10:], is_last=True)

    assert channel.refused == ["the node stops"]
