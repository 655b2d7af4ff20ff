"""A request that waits where it is to be, and is asked again when that node is gone."""

import asyncio
from types import SimpleNamespace
from typing import Any

from waterclock.cluster.forwarded import ForwardedRequest
from waterclock.model.errors import Unreachable
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.http_routing import HttpRouting
from waterclock.server.cluster.calls.place import OF_GROUP_WAITING
from waterclock.server.cluster.calls.router import Where
from waterclock.server.cluster.forwarder import PLACE_S, Forwarder
from waterclock.server.cluster.ownership import RingOwnership
from waterclock.server.http.messages import Request, Response
from waterclock.server.http.operations import Operation
from waterclock.server.rest.consume import WAIT_MS_MAX, PollParameters

POLL = Request(b"GET", b"/topics/orders/messages", b"group=g&consumer=c&wait=30s", [], b"")


class Loop:
    """Time that passes when it is told to; what is to be called later is called then."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._later: list[tuple[float, Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, after_s: float, call: Any, *arguments: Any) -> None:
        self._later.append((self.now_s + after_s, call, arguments))

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [each for each in self._later if each[0] <= end_s]:
            first = min(due, key=lambda each: each[0])
            self._later.remove(first)
            self.now_s = first[0]
            first[1](*first[2])
        self.now_s = end_s


class Homes:
    """Nodes that take what they are asked, unless nobody is there."""

    def __init__(self) -> None:
        self.home = "b"
        self.is_there = True
        self.asked: list[tuple[str, int]] = []
        """Who, and how long it may wait yet."""

    def ask(self, node_id: str, method: int, body: bytes, caller: Any) -> Any:
        if not self.is_there:
            raise Unreachable(node_id)
        self.asked.append((node_id, ForwardedRequest.decode(body).left_ms))
        return SimpleNamespace(cancel=lambda why: None)


async def polling(loop: Loop, homes: Homes, wait_ms: int) -> Any:
    async with asyncio.TaskGroup() as tasks:
        forwarder = Forwarder(homes, RingOwnership("a"), lambda _: Response(500), tasks)
        forwarder._loop = loop  # type: ignore[assignment]
        return forwarder.forward_to(POLL, lambda: homes.home, is_harmless=True, wait_ms=wait_ms)


async def test_one_that_has_waited_for_long_goes_on_at_the_next_home_for_the_rest_of_its_time():
    loop, homes = Loop(), Homes()
    call = await polling(loop, homes, 30_000)
    loop.pass_s(PLACE_S + 5)
    homes.home = "c"
    call.failed(Unreachable("b"))
    loop.pass_s(1)

    assert homes.asked[0] == ("b", 0)
    assert homes.asked[1][0] == "c"
    assert 14_000 <= homes.asked[1][1] <= 15_000
    assert not call.is_over


class Router:
    """Has everything answered by b."""

    me = "a"

    def find(self, place: object, read: object) -> Where:
        return Where("the group", {"b": ()})


async def test_who_would_wait_for_longer_than_anybody_answers_is_asked_for_again_all_the_same():
    loop, homes = Loop(), Homes()
    homes.is_there = False
    router: Any = Router()
    routing = HttpRouting(router)
    query = b"group=g&consumer=c&wait=60d"
    poll = Request(b"GET", b"/topics/orders/messages", query, [], b"", params={"topic": "orders"})
    operation = Operation(
        "GET", "/topics/{topic}/messages", lambda request: Response(500), "poll", "", {},
        parameters=PollParameters, place=OF_GROUP_WAITING, needs=Needs(None),
    )  # fmt: skip
    async with asyncio.TaskGroup() as tasks:
        routing.forwarder = Forwarder(homes, RingOwnership("a"), lambda _: Response(500), tasks)
        routing.forwarder._loop = loop  # type: ignore[assignment]
        routing.routed(operation).handler(poll)
        loop.pass_s(0.1)
        homes.is_there = True
        loop.pass_s(PLACE_S - 1)

    [(node, left_ms)] = homes.asked
    assert node == "b"
    assert WAIT_MS_MAX - PLACE_S * 1_000 < left_ms <= WAIT_MS_MAX


async def test_a_node_is_looked_for_no_longer_than_before_however_long_one_had_it():
    loop, homes = Loop(), Homes()
    call = await polling(loop, homes, 30_000)
    loop.pass_s(PLACE_S + 5)
    homes.is_there = False
    call.failed(Unreachable("b"))
    loop.pass_s(PLACE_S - 1)
    assert not call.is_over

    loop.pass_s(1)
    assert call.is_over
