"""Requests about topics that a node has answered by another one."""

from types import SimpleNamespace
from typing import Any

import pytest

from waterclock.model.errors import Unavailable
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.http_routing import HttpRouting
from waterclock.server.cluster.calls.place import META
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
