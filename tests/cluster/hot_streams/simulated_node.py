"""One node of those that share a hot stream: the real core, and its messages and polls in lists."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from waterclock.cluster.hot_streams import exchange
from waterclock.cluster.hot_streams.partitions import (
    Effect,
    Exchanged,
    Local,
    Partitions,
    Released,
    Return,
    SendKeep,
)

if TYPE_CHECKING:
    from tests.cluster.hot_streams.simulated import World

STREAM = "hot"
SIZE = 100_000

Answer = Callable[[Any], None]
"""Takes an answer; None: there is none."""


class Poll:
    """A receiver that waits, and the node that asks for it."""

    def __init__(self, front: "SimulatedNode", deadline_ms: int) -> None:
        self.front = front
        self.since_ms = 0
        self.deadline_ms = deadline_ms


class SimulatedNode:
    """A node: the core, the messages and polls in its memory, and open channels."""

    def __init__(self, name: str, world: "World") -> None:
        self.name = name
        self.world = world
        self.ring = world.ring
        self.is_alive = True
        self.messages: deque[tuple[int, int]] = deque()
        """Each with the time since when it is here."""
        self.polls: deque[Poll] = deque()
        self.core = Partitions(name, world.config, self._look, self.ring, world.now_ms)
        self.wants: dict[str, Answer] = {}
        self.watches: list[Answer] = []
        self.is_returning = False
        self.has_order = False

    def _look(self, stream: str) -> Local:
        room = SIZE - len(self.messages)
        return Local(len(self.messages), len(self.polls), room, SIZE, self.has_order)

    @property
    def is_owner(self) -> bool:
        return self.ring.owner(STREAM) == self.name

    @property
    def is_part(self) -> bool:
        return self.is_owner or STREAM in self.core.exchanges

    # Requests of clients

    def take_message(self, message: int) -> None:
        self.messages.append((message, self.world.now_ms))
        self._match()

    def take_poll(self, poll: Poll) -> None:
        poll.since_ms = self.world.now_ms
        self.polls.append(poll)
        self._match()

    def _match(self) -> None:
        while self.messages and self.polls:
            self.world.deliver(self.messages.popleft()[0])
            self.polls.popleft()
        self.perform(self.core.changed(STREAM))

    # Time

    def tick(self) -> None:
        now_ms = self.world.now_ms
        self.polls = deque(poll for poll in self.polls if poll.deadline_ms > now_ms)
        self.perform(self.core.tick(now_ms))
        if not self.is_part and self.world.plant != "nothing is returned":
            self._return()

    def change_ring(self) -> None:
        self.ring = self.world.ring
        self.perform(self.core.ring_changed(self.ring, self.world.now_ms))

    # What the core wants

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Exchanged):
                self._exchange(effect.effect)
            elif isinstance(effect, SendKeep):
                node, keep = effect
                reported = partial(self._reported, node)
                self.world.ask(self, node, _keep(self, keep), reported)
            elif isinstance(effect, Released):
                for answer in [*self.watches, *self.wants.values()]:
                    answer(None)
                self.watches, self.wants = [], {}
            elif isinstance(effect, Return) and self.world.plant != "nothing is returned":
                self._return()

    def _exchange(self, effect: exchange.Effect) -> None:
        ask, plant = self.world.ask, self.world.plant
        if isinstance(effect, exchange.Want):
            root, size = effect
            ask(self, root, lambda n, a: n.hear_want(self, size, a), self._directed)
        elif isinstance(effect, exchange.Watch):
            node = effect.node
            ask(self, node, lambda n, a: n.hear_watch(a), lambda c: self._has(node, c))
        elif isinstance(effect, exchange.Has):
            watches, self.watches = self.watches, []
            for answer in watches:
                answer(effect.messages)
        elif isinstance(effect, exchange.Tell):
            if plant == "a want is forgotten" and self.world.random.random() < 0.1:
                return
            self.wants.pop(effect.node)(effect.source)
        else:
            source, size = effect
            ask(
                self,
                source,
                lambda n, a: n.hear_pull(size, a),
                lambda found: self._pulled(source, found),
            )

    def _reported(self, node: str, report: Any) -> None:
        if report is not None:
            self.perform(self.core.reported(STREAM, node, report, self.world.now_ms))

    def _directed(self, source: str | None) -> None:
        self.perform(self.core.answered(STREAM, source))

    def _has(self, node: str, size: int | None) -> None:
        self.perform(self.core.has(STREAM, node, size or 0))

    def _pulled(self, source: str, found: tuple[list[int], int] | None) -> None:
        if found is None:
            self.perform(self.core.pull_failed(STREAM))
            return
        items, left = found
        for message in items:
            if self.polls or self.world.plant != "surplus is dropped":
                self.messages.append((message, self.world.now_ms))
        while self.messages and self.polls:
            self.world.deliver(self.messages.popleft()[0])
            self.polls.popleft()
        self.perform(self.core.pulled(STREAM, source, left if items else 0))

    def _return(self) -> None:
        """Bring everything to the owner, as the hand-over of streams does."""
        polls, self.polls = self.polls, deque()
        for poll in polls:
            self.world.later(self.world.poll_again, poll)
        if self.is_returning or not self.messages:
            return
        self.is_returning = True
        items = [message for message, _ in self.messages]
        self.messages.clear()

        def answered(answer: Any) -> None:
            self.is_returning = False
            for item in items if answer == "refused" else ():
                self.take_message(item)

        owner = self.ring.owner(STREAM)
        self.world.ask(self, owner, lambda n, a: n.hear_return(items, a), answered, items)

    # What others say

    def hear_keep(self, sender: "SimulatedNode", keep: Any, answer: Answer) -> None:
        report, effects = self.core.keep_heard(sender.name, keep, self.world.now_ms)
        self.perform(effects)
        answer(report)

    def hear_want(self, node: "SimulatedNode", size: int, answer: Answer) -> None:
        self.wants[node.name] = answer
        effects = self.core.wanted(STREAM, node.name, size)
        if effects is None:
            self.wants.pop(node.name)(None)
        else:
            self.perform(effects)

    def hear_watch(self, answer: Answer) -> None:
        self.watches.append(answer)
        effects = self.core.watched(STREAM)
        if self.world.plant == "a watch sees only what comes" and effects:
            return
        if effects is None:
            self.watches.pop()(None)
        else:
            self.perform(effects)

    def hear_pull(self, size: int, answer: Answer) -> None:
        if STREAM not in self.core.exchanges:
            answer(None)
            return
        found = [self.messages.popleft()[0] for _ in range(min(size, len(self.messages)))]
        if self.world.plant == "pulled messages stay":
            self.messages.extendleft((message, 0) for message in reversed(found))
        answer((found, len(self.messages)))
        self.perform(self.core.changed(STREAM))

    def hear_return(self, items: list[int], answer: Answer) -> None:
        if not self.is_owner:
            answer("refused")
            return
        for message in items:
            self.take_message(message)
        answer("taken")


def _keep(sender: SimulatedNode, keep: Any) -> Callable[[SimulatedNode, Answer], None]:
    return lambda node, answer: node.hear_keep(sender, keep, answer)
