"""Other nodes that the console asks: one that says nothing is named, and not waited for."""

import asyncio

import pytest

from tests.cluster.joined import until
from waterclock.server.console import other_nodes
from waterclock.server.console.other_nodes import OtherNodes
from waterclock.server.http.messages import Response

SHORT_S, LONG_S = 0.01, 3_600  # nobody waits for so long


class Nodes:
    """They answer at once, and those that are mute once they are let."""

    def __init__(self, tasks: asyncio.TaskGroup, *mute: str) -> None:
        self.others = OtherNodes(self._ask, tasks.create_task)
        self.asked: list[str] = []
        self.speaks = {name: asyncio.Event() for name in mute}

    async def heard(self) -> list[str]:
        return sorted(await self.others.counts(["b", "c"], has_dead=False))

    async def _ask(self, name: str, has_dead: bool) -> Response | None:
        self.asked.append(name)
        if name in self.speaks:
            await self.speaks[name].wait()
        return Response(200, b"counts")


async def test_a_node_that_says_nothing_is_waited_for_once(monkeypatch):
    async with asyncio.TaskGroup() as tasks:
        nodes = Nodes(tasks, "c")
        monkeypatch.setattr(other_nodes, "ANSWER_S", SHORT_S)
        await nodes.heard()
        monkeypatch.setattr(other_nodes, "ANSWER_S", LONG_S)
        asked = len(nodes.asked)

        nodes.others.slow.discard("b")  # this machine may be slow as well
        assert await nodes.heard() == ["b"]
        assert await nodes.heard() == ["b"]

        assert nodes.asked[asked:] == ["b", "b"]  # one question to the other is under way
        nodes.speaks["c"].set()


async def test_a_node_is_waited_for_again_once_it_has_answered_in_time(monkeypatch):
    async with asyncio.TaskGroup() as tasks:
        nodes = Nodes(tasks, "b", "c")
        monkeypatch.setattr(other_nodes, "ANSWER_S", SHORT_S)
        assert await nodes.heard() == []
        assert nodes.others.slow == {"b", "c"}

        monkeypatch.setattr(other_nodes, "ANSWER_S", LONG_S)
        nodes.speaks["c"].set()
        await until(lambda: "c" not in nodes.others.slow)
        assert await nodes.heard() == ["c"]
        nodes.speaks["b"].set()


async def test_a_node_that_answers_too_late_stays_slow(monkeypatch):
    async with asyncio.TaskGroup() as tasks:
        nodes = Nodes(tasks, "b", "c")
        monkeypatch.setattr(other_nodes, "ANSWER_S", SHORT_S)
        await nodes.heard()
        monkeypatch.setattr(other_nodes, "ANSWER_S", 0)  # whatever the clock's grain is
        for speaks in nodes.speaks.values():
            speaks.set()

    assert nodes.others.slow == {"b", "c"}


async def test_what_goes_wrong_in_asking_is_raised_to_who_asked():
    async def fail(name: str, has_dead: bool) -> Response | None:
        raise ZeroDivisionError

    async with asyncio.TaskGroup() as tasks:
        others = OtherNodes(fail, tasks.create_task)
        with pytest.raises(ZeroDivisionError):
            await others.counts(["b"], has_dead=False)
