"""Requests about topics that a node has answered by another one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from waterclock.model.errors import NotLeader, Unavailable
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.http_routing import HttpRouting
from waterclock.server.cluster.calls.place import META, META_ONCE
from waterclock.server.cluster.calls.router import Where
from waterclock.server.http.operations import Operation


class Elsewhere:
    """A router of a node that leads nothing."""

    me = "a"

    def find(self, place: object, read: object) -> Where:
        return Where("the topics", {"b": ()})


def test_a_request_that_comes_before_the_node_is_linked_is_to_be_asked_again():
    router: Any = Elsewhere()
    request: Any = SimpleNamespace()
    operation = Operation(
        "GET", "/topics", lambda request: pytest.fail("it was answered here"), "listTopics", "",
        {}, Needs(None), place=META,
    )  # fmt: skip

    with pytest.raises(Unavailable, match="starting: ask again"):
        HttpRouting(router).routed(operation).handler(request)


class AlmostHere:
    """A router of a node that is to lead what a request is about."""

    me = "a"

    def find(self, place: object, read: object) -> Where:
        return Where("the metadata", {"a": ()})

    def check_still(self, place: object, read: object, partitions: object) -> None:
        """It still is."""


def refuses(request: object) -> Any:
    raise NotLeader("__meta")


async def refuses_later(request: object) -> Any:
    raise NotLeader("__meta")


@pytest.mark.parametrize("handler", [refuses, refuses_later])
async def test_what_this_node_is_to_lead_and_does_not_yet_is_asked_again(handler):
    router: Any = AlmostHere()
    request: Any = SimpleNamespace()
    routing = HttpRouting(router)
    forwarder: Any = SimpleNamespace(
        forward_to=lambda request, target, *, is_harmless, wait_ms: ("asked again", target())
    )
    routing.forwarder = forwarder
    operation = Operation(
        "POST", "/topics", handler, "createTopic", "", {}, Needs(None), place=META_ONCE,
    )  # fmt: skip

    answered: Any = routing.routed(operation).handler(request)
    if asyncio.iscoroutine(answered):
        answered = await answered

    assert answered == ("asked again", "a")
