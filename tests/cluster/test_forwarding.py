"""What a client of another node may do, as the node that has the records sees it, or the topics."""

import asyncio
from typing import Any, cast

import pytest

from tests.cluster.through import LedBy
from waterclock.cluster.remote_calls import CallHead, message, rights
from waterclock.model.errors import Forbidden
from waterclock.security.principals import ANYONE, Principal
from waterclock.security.rights import parse_rights
from waterclock.server.access import CALLER
from waterclock.server.cluster.calls.answering import CallAnswering, RemoteMethod
from waterclock.server.cluster.calls.forwarded_request import principal_of, texts_of
from waterclock.server.cluster.calls.forwarding import Forwarding
from waterclock.server.cluster.calls.router import Router
from waterclock.v1.admin_pb2 import JobRun, PutJobRunRequest
from waterclock.v1.scheduler_pb2 import CountScheduledRequest, CountScheduledResponse

ACME = texts_of(Principal("acme", parse_rights({"read": ["acme.*"]})))


def permit(run: JobRun, known: dict[str, str]) -> None:
    nothing = cast(Any, None)
    forwarding = Forwarding(nothing, nothing, {"run": known.get})
    forwarding.permit("Admin/PutJobRun", PutJobRunRequest(run=run), ACME)


def test_what_has_a_name_is_of_the_topic_that_it_has_here():
    permit(JobRun(name="compact"), {"compact": "acme.orders"})
    with pytest.raises(Forbidden):
        permit(JobRun(name="compact", topic="acme.orders"), {"compact": "orders"})
    with pytest.raises(Forbidden):
        permit(JobRun(name="compact"), {"compact": ""})


def test_what_is_not_there_any_more_is_not_made_where_the_client_may_not():
    """The other node let it in for the topic of the run that it still knows."""
    permit(JobRun(name="compact", topic="acme.orders"), {})
    for topic in ("", "orders"):
        with pytest.raises(Forbidden):
            permit(JobRun(name="compact", topic=topic), {})


COUNT = "Scheduler/CountScheduled"


class NoTopics:
    """A node that has none: all that it is asked goes to the leader of the records."""

    def all(self) -> list[Any]:
        return []


async def test_who_asks_for_what_all_topics_have_is_told_to_the_node_that_has_them():
    given: list[bytes] = []

    class Remote:
        async def unary(self, *_: object, texts: bytes, **__: object) -> bytes:
            given.append(texts)
            return b""

    router = Router(NoTopics(), LedBy("front"))  # type: ignore[arg-type]
    forwarding = Forwarding(router, Remote(), {})  # type: ignore[arg-type]
    ask = forwarding.unary(COUNT, cast(Any, None), CountScheduledResponse)
    for principal in (ANYONE, principal_of(ACME)):
        CALLER.set(principal)
        await ask(CountScheduledRequest())

    assert given == [b"", ACME]


class Answers:
    """A channel of a link, and whether its call is over."""

    is_open, is_blocked = True, False
    listener: Any = None

    def __init__(self) -> None:
        self.over = asyncio.Event()

    def grant(self, size: int) -> None:
        pass

    def answer(self, status: int, body: bytes, *, is_last: bool = True) -> None:
        if is_last:
            self.over.set()


@pytest.mark.parametrize("texts", [b"", ACME])
async def test_a_node_answers_by_the_rights_of_who_asked_the_other_one(texts):
    seen: list[Principal] = []

    async def work(request: CountScheduledRequest) -> CountScheduledResponse:
        seen.append(CALLER.get())
        return CountScheduledResponse()

    channel: Any = Answers()
    CALLER.set(principal_of(texts_of(Principal("a link", parse_rights({"read": ["other"]})))))
    async with asyncio.TaskGroup() as tasks:
        answering = CallAnswering(
            {COUNT: RemoteMethod(work, CountScheduledRequest)},
            lambda *_: None,
            lambda *_: None,
            lambda *_: None,
            tasks,
            of_nodes={},
        )
        answering.requested(
            channel, CallHead(COUNT, ()).encode() + rights(texts) + message(b""), is_last=True
        )
        await channel.over.wait()

    assert [each.rights for each in seen] == [principal_of(texts).rights]
