"""The conductor: plays a round by its plan on a cluster that runs, and brings home its history.

It decides nothing: what happens when is in the plan. Whoever was killed or has left is started
again, and at the end all nodes of the beginning are there, and must agree on that.
"""

import asyncio
import time
from collections.abc import Sequence

from tests.cluster.chaos.fleet import ClusterNode
from tests.cluster.chaos.history import History, Performed
from tests.cluster.chaos.load import Load, Node
from tests.cluster.chaos.network import Namespaces
from tests.cluster.chaos.oracle import eras_of
from tests.cluster.chaos.plan import NODES, Fault, Plan, Step

HEAL_S_MAX = 45.0
LOOK_S = 0.25
STABLE_S = 6.0
"""Nodes that were cut off from each other may agree at first: a suspicion of before can take so
long to end, and only then do they part."""


class Conductor:
    """Plays one round."""

    def __init__(self, plan: Plan, nodes: Sequence[ClusterNode], network: Namespaces) -> None:
        self._plan = plan
        self._all = nodes
        self._network = network
        self._known: list[Node] = [*nodes[:NODES]]
        """Whom clients ask."""
        self._history = History(plan)
        self._changes: list[tuple[float, list[frozenset[str]]]] = []
        self._harms: dict[int, tuple[set[int], float]] = {}
        """By node: whom it does not reach, and how much is lost."""
        self._apart: set[str] = set()
        """Nodes that others may take for dead, and they others."""
        self._changed()

    async def run(self) -> History:
        """Play it, and return what was."""
        history, begun_s = self._history, time.monotonic()
        load = Load(self._plan, history, lambda: self._known)
        async with asyncio.TaskGroup() as tasks:
            lag = tasks.create_task(load.watch_lag())
            sending = tasks.create_task(load.send())
            receiving = tasks.create_task(load.receive())
            await self._play(begun_s)
            healing = tasks.create_task(self._wait_for_healing())
            await asyncio.sleep(max(0.0, begun_s + self._plan.load_ms / 1_000 - time.monotonic()))
            load.stop_sending()
            await sending
            await healing
            load.stop_receiving()
            await receiving
            lag.cancel()
        await load.read()
        history.eras = eras_of(self._changes, time.monotonic())
        history.seconds = time.monotonic() - begun_s
        return history

    async def _play(self, begun_s: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for step in self._plan.steps:
                tasks.create_task(self._perform(step, begun_s))

    async def _perform(self, step: Step, begun_s: float) -> None:
        await asyncio.sleep(max(0.0, begun_s + step.at_ms / 1_000 - time.monotonic()))
        node, from_s = self._all[step.index], time.monotonic()
        match step.fault:
            case Fault.KILL:
                await self._kill(step, node)
                return
            case Fault.LEAVE:
                await self._leave(node)
                await asyncio.sleep(step.for_ms / 1_000)
                await self._join(node)
            case Fault.JOIN:
                await self._join(node)
                await asyncio.sleep(step.for_ms / 1_000)
                await self._leave(node)
            case Fault.PAUSE:
                self._part(node)
                node.process.pause()
                await asyncio.sleep(step.for_ms / 1_000)
                node.process.resume()
                self._meet(node)
            case Fault.CUT | Fault.ONE_WAY | Fault.LOSS:
                await self._harm(step, node)
        self._history.performed.append(Performed(step, node.name, from_s, time.monotonic()))

    async def _kill(self, step: Step, node: ClusterNode) -> None:
        from_s = time.monotonic()
        if not node.is_running:
            return
        node.process.kill()
        # What counts is when it died, and not when it is back.
        self._history.performed.append(Performed(step, node.name, from_s, time.monotonic()))
        self._changed(without=node)
        await asyncio.sleep(step.for_ms / 1_000)
        await self._join(node)

    async def _leave(self, node: ClusterNode) -> None:
        if node.is_running:
            self._changed(without=node)
            await node.leave()
        if node in self._known and node.index >= NODES:
            self._known.remove(node)

    async def _join(self, node: ClusterNode) -> None:
        await node.start()
        if node not in self._known:
            self._known.append(node)
        self._changed()

    async def _harm(self, step: Step, node: ClusterNode) -> None:
        others = {each.index for each in self._all if each is not node}
        if step.fault is Fault.LOSS:
            self._harms[node.index] = (set(), step.loss)
        else:
            self._part(node)
            self._harms[node.index] = (others, 0.0)
            if step.fault is Fault.CUT:
                self._harms |= {other: ({node.index}, 0.0) for other in others}
        self._set_harms()
        await asyncio.sleep(step.for_ms / 1_000)
        for index in (node.index,) if step.fault is not Fault.CUT else (node.index, *others):
            self._harms.pop(index, None)
        self._set_harms()
        if step.fault is not Fault.LOSS:
            self._meet(node)

    def _set_harms(self) -> None:
        for index in range(len(self._all)):
            cut_off, loss = self._harms.get(index, (set(), 0.0))
            self._network.harm(index, cut_off=cut_off, loss=loss)

    # Who is there

    def _part(self, node: ClusterNode) -> None:
        self._apart.add(node.name)
        self._changed()

    def _meet(self, node: ClusterNode) -> None:
        self._apart.discard(node.name)
        self._changed()

    def _changed(self, without: ClusterNode | None = None) -> None:
        """Note what nodes may take for all there are, from now on."""
        here = frozenset(each.name for each in self._all if each.is_running and each is not without)
        views = [here]
        for name in self._apart & here:
            views += [here - {name}, frozenset({name})]
        self._changes.append((time.monotonic(), views))

    async def _wait_for_healing(self) -> None:
        begun_s = time.monotonic()
        agreed_s, self._history.views = await agreement(self._all[:NODES])
        if agreed_s is not None:
            self._history.heal_s = agreed_s - begun_s


async def agreement(nodes: Sequence[ClusterNode]) -> tuple[float | None, str]:
    """Wait until nodes take each other for all there are, and go on doing so.

    Return from when on they did; None if they never do, and what they say.
    """
    wanted = frozenset(node.name for node in nodes)
    deadline_s = time.monotonic() + HEAL_S_MAX
    since_s: float | None = None
    while True:
        looked_s = time.monotonic()
        views = await asyncio.gather(*(node.ring() for node in nodes))
        if any(view != wanted for view in views):
            since_s = None
        elif since_s is None:
            since_s = looked_s
        elif looked_s - since_s > STABLE_S:
            return since_s, ""
        if looked_s > deadline_s:
            named = zip(nodes, views, strict=True)
            lines = (f"{node.name}: {', '.join(sorted(view))}" for node, view in named)
            return None, "; ".join(lines)
        await asyncio.sleep(LOOK_S)
