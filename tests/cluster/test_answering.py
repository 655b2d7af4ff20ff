"""What a node does for the clients of other nodes leaves nothing behind on their link."""

from typing import Any

from waterclock.cluster.forwarded import ForwardedRequest
from waterclock.runtime.structured_log import request_id
from waterclock.server.cluster.answering import Answering
from waterclock.server.http.messages import Request, Response
from waterclock.server.http.routes import answer_from


class Channel:
    """Where an answer goes."""

    is_open = True
    listener: Any = None

    def __init__(self) -> None:
        self.answered: list[int] = []

    def answer(self, status: int, body: bytes) -> None:
        self.answered.append(status)


def test_the_id_of_a_request_is_in_what_is_logged_for_it_and_in_nothing_that_follows():
    seen = []

    def handler(_: Request) -> Response:
        seen.append(request_id())
        return Response(200)

    channel: Any = Channel()
    tasks: Any = None  # an answer that is there at once needs none
    answering = Answering(
        answer_from({b"/streams": {b"GET": handler}}), tasks, body_bytes_max=1_000
    )
    asked = ForwardedRequest(1_000, b"GET", b"/streams", b"", b"", b"")

    answering.requested(channel, asked.encode(), is_last=True)

    assert channel.answered == [200]
    assert seen[0]
    assert request_id() == ""
