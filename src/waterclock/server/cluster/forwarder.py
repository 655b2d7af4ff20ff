"""Requests for streams of other nodes: asked there for the client, and asked again if need be.

A request goes to the owner of its stream and no further. While the nodes disagree about who that
is, or it cannot be reached, the request is tried again, within the time that the client waits; at
the end it is answered with 424, and `owner` says who it should be. One that may have been carried
out already is tried again only if that does no harm.
"""

import asyncio
import math
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from waterclock.cluster.forwarded import (
    FORWARD,
    BadForward,
    ForwardedRequest,
    asked_again,
)
from waterclock.cluster.peer_link.breaker import Breaker
from waterclock.cluster.peer_link.channels import Channel, Listener
from waterclock.model.errors import Stopping, Unavailable, Unreachable
from waterclock.node.streams.host import Ownership
from waterclock.server.cluster.calls.forwarded_request import rights_of
from waterclock.server.cluster.calls.whole_answer import WholeAnswer
from waterclock.server.cluster.forwarded_call import ForwardedCall, PlacedCall, Target
from waterclock.server.cluster.reply import Reply
from waterclock.server.http.messages import (
    Handler,
    Pending,
    Request,
    Response,
    Streamed,
    problem,
)
from waterclock.server.http.problems import RETRY_AFTER, problem_of

if TYPE_CHECKING:
    from waterclock.server.cluster.processes.connections import SharedConnections

PAUSE_S: Final = 0.025
PAUSE_S_MAX: Final = 0.4
LATE_S: Final = 2.0
"""How much later than the client's time an answer may come to what must not be asked again: better
late than not to know."""
READ_S: Final = 1.0
"""What the owner may take to read a store, however short the client's time is."""
PLACE_S: Final = 10.0
"""How long a node is looked for that leads: longer than it takes to lead in another's stead."""
SWEEP_S: Final = 0.25
ONE_MS: Final = 5_000
"""How long a node may take to answer what was asked of it by name."""
STOPS: Final = "the node is stopping: ask again, or elsewhere"


class Asks(Protocol):
    """Carries a request to a node."""

    def ask(self, node_id: str, method: int, body: bytes, caller: Listener) -> Channel:
        """Ask; raises Unreachable if there is no way to that node now."""
        ...


class Forwarder:
    """Asks other nodes for this node's clients; `handler` answers what is its own by then."""

    def __init__(
        self, asks: Asks, owners: Ownership, handler: Handler, tasks: asyncio.TaskGroup
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._asks = asks
        self._owners = owners
        self._handler = handler
        self._tasks = tasks
        self._is_stopping = False
        self.shared_connections: SharedConnections | None = None
        """Brings connections to the nodes that answer them, if those are of one machine."""
        self._breakers: dict[str, Breaker] = {}
        # Not a set, which takes 100 bytes for each of ten thousand, where this takes 30.
        self._calls: dict[ForwardedCall, None] = {}
        self.forwarded = 0
        """Requests, each time they were asked of another node."""
        self.retried = 0
        self.broken_polls = 0
        """Polls of streams that were asked again since their link broke: the owner may have
        answered, and a message was on that link."""

    def __repr__(self) -> str:
        return f"<Forwarder {len(self._calls)} waiting>"

    def __len__(self) -> int:
        return len(self._calls)

    def breakers(self) -> Counter[str]:
        """Return how many circuit breakers are closed, open and half open."""
        return Counter(breaker.state for breaker in self._breakers.values())

    def forward(
        self, request: Request, stream: str, timeout_ms: int, *, first: str | None = None
    ) -> Pending:
        """Have the owner of a stream answer; the client waits so long at most. `first` is asked
        before the owner: it has a part of the stream."""
        if self._is_stopping:
            raise Stopping(STOPS)
        now = self._loop.time()
        deadline = now + timeout_ms / 1_000
        left_ms = max(1, timeout_ms)
        call = ForwardedCall(self, request, stream, deadline, PAUSE_S, left_ms=left_ms)
        is_harmless = request.method != b"POST"
        call.until = max(deadline, now + READ_S) if is_harmless else deadline + LATE_S
        self._calls[call] = None
        self._ask(call, first or self._owners.owner(stream), call.encoded, now)
        return call

    def forward_to(
        self, request: Request, place: Target, *, is_harmless: bool, wait_ms: int = 0
    ) -> Pending:
        """Have a request about topics answered where it is to be; the node is looked for a while,
        and then has all the time it takes: its link tells if it is gone. One that waits `wait_ms`
        at most does not begin anew at another node."""
        if self._is_stopping:
            raise Stopping(STOPS)
        now = self._loop.time()
        call = PlacedCall(self, request, place, now + PLACE_S, PAUSE_S, is_harmless=is_harmless)
        call.wait_until = now + wait_ms / 1_000 if wait_ms else 0.0
        call.until = math.inf
        self._calls[call] = None
        self._ask(call, call.target(self._owners), call.encoded, now)
        return call

    def take_over(self, call: Pending, request: Request, stream: str, timeout_ms: int) -> None:
        """Have the owner of a stream answer a call that waited here until the stream moved."""
        try:
            forwarded = self.forward(request, stream, timeout_ms)
        except Stopping as error:
            call.answer(problem_of(error, request))
            return
        call.on_gone = lambda _: forwarded.cancel()
        Reply(_Moved(call), self._tasks).wait_for(forwarded, request)

    async def ask_node(self, node_id: str, path: bytes, query: bytes) -> Response | None:
        """Have a node answer a GET of what is its own; None if it does not, in time."""
        asked = ForwardedRequest(ONE_MS, b"GET", path, query, b"", b"")
        answer = WholeAnswer(node_id)
        try:
            answer.channel = self._asks.ask(node_id, FORWARD, asked.encode(), answer)
        except Unreachable:
            return None
        try:
            return await asyncio.wait_for(answer.heard, ONE_MS / 1_000)
        except (TimeoutError, Unavailable, BadForward):
            return None
        finally:
            answer.channel.cancel("it took too long")

    async def ask_for(
        self, node_id: str, request: Request, partitions: tuple[int, ...]
    ) -> Response:
        """Have a node answer a request about topics for some of their partitions, or as far as it
        can; raises NotLeader, Unreachable, or Lost if nobody knows whether it was done."""
        asked = ForwardedRequest(
            0,
            request.method,
            request.path,
            request.query,
            b"",
            request.body,
            partitions=b",".join(b"%d" % number for number in partitions),
            rights=rights_of(request),
        )
        answer = WholeAnswer(node_id)
        answer.channel = self._asks.ask(node_id, FORWARD, asked.encode(), answer)
        self.forwarded += 1
        try:
            return await answer.heard
        finally:
            answer.channel.cancel("the client has gone")

    def stop(self) -> None:
        """Ask no more: whoever waits should ask another node."""
        self._is_stopping = True
        for call in tuple(self._calls):
            call.leave()
            call.answer(problem(503, STOPS, RETRY_AFTER, error="Stopping"))

    async def run(self) -> None:
        """Give up on nodes that do not answer, until cancelled."""
        # By the time of the sweep before: if this node stood still, answers are to be read first.
        swept = self._loop.time()
        while True:
            await asyncio.sleep(SWEEP_S)
            over = [call for call in self._calls if call.until < swept]
            swept = self._loop.time()
            for call in over:
                call.give_up()

    # What calls tell

    def heard(self, call: ForwardedCall) -> None:
        """The node that was asked has answered, whatever it said."""
        self._breakers[call.owner].succeeded()

    def failed(self, call: ForwardedCall) -> None:
        """The node that was asked does not answer."""
        self._breakers[call.owner].failed(self._now_ms())

    def over(self, call: ForwardedCall) -> None:
        """Nobody waits for this one any more."""
        self._calls.pop(call, None)

    def ask_again(self, call: ForwardedCall) -> None:
        """Ask the owner once more, after a pause, if there is time for that."""
        now = self._loop.time()
        call.lost(now)
        if now + call.pause_s >= call.deadline:
            call.answer(call.unstable(self._owners))
            return
        self.retried += 1
        self._loop.call_later(call.pause_s, self._ask_once_more, call)
        call.pause_s = min(call.pause_s * 2, PAUSE_S_MAX)

    def no_answer(self, call: ForwardedCall, why: str) -> Response:
        """Return what to say of a request that may have been carried out, or not: a poll, too, may
        have been given a message."""
        where = self._owners.address(call.owner)
        detail = f"{where} did not answer ({why}); it may have done it, or not"
        return problem(503, detail, RETRY_AFTER, error="Unreachable", owner=where)

    # Asking

    def _ask_once_more(self, call: ForwardedCall) -> None:
        if not call.is_over:
            now = self._loop.time()
            asked = asked_again(call.encoded, left_ms=call.left_ms(now))
            self._ask(call, call.target(self._owners), asked, now)

    def _ask(self, call: ForwardedCall, owner: str | None, asked: bytes, now: float) -> None:
        if owner is None:  # it is ours by now
            call.asked(now)
            call.reply = Reply(call, self._tasks)
            call.reply.run(self._handler, call.request(call.left_ms(now)))
            return
        if owner == self._owners.node_id:  # it is ours, and still on its way here
            self.ask_again(call)
            return
        call.owner = owner
        breaker = self._breakers.get(owner)
        if breaker is None:
            breaker = self._breakers[owner] = Breaker()
        now_ms = int(now * 1_000)
        if not breaker.allows(now_ms):
            self.ask_again(call)
            return
        try:
            call.channel = self._asks.ask(owner, FORWARD, asked, call)
        except Unreachable:
            breaker.failed(now_ms)
            self.ask_again(call)
        else:
            self.forwarded += 1
            call.asked(now)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)


class _Moved:
    """A call that waited here; what is answered elsewhere is its answer."""

    __slots__ = ("_call",)

    def __init__(self, call: Pending) -> None:
        self._call = call

    @property
    def is_waiting(self) -> bool:
        return not self._call.is_over

    def take(self, answer: Response | Streamed) -> None:
        self._call.answer(answer)
