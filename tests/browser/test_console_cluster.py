"""The console of one node of a cluster: it shows all of them, and goes on while leaders move, and
while a node dies and comes back. Nobody reloads the page meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.browser.test_console import Console, page
from tests.cluster.conftest import member
from tests.cluster.joined import config_of
from tests.cluster.running_nodes import RunningNode
from tests.kit.aside import aside
from tests.kit.ports import free_in_a_row

__all__ = ["member", "page"]

pytestmark = pytest.mark.etcd
NAMES = "abc"
TAB = "\t"
CELLS = "[...{}.cells].map((cell) => cell.innerText)"
ROW = "[...document.querySelectorAll('tr')].find((row) => row.innerText.startsWith({}))"


class Nodes:
    """Three nodes in a loop of their own, told from a test what to do."""

    def __init__(self, folder: Path, endpoint: str, tasks: asyncio.TaskGroup) -> None:
        first = free_in_a_row(len(NAMES))
        self._gossip_ports = {name: first + at for at, name in enumerate(NAMES)}
        seeds = tuple(f"127.0.0.1:{port}" for port in self._gossip_ports.values())
        self._shared = {"etcd": (endpoint,), "expect": len(NAMES), "bootstrap_nodes": seeds}
        self._folder = folder
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, tuple[RunningNode, asyncio.Task[None]]] = {}
        self.ports: dict[str, int] = {}

    async def start(self, *names: str) -> None:
        """Start nodes side by side: a cluster forms when all of them are there."""
        for name in names:
            cluster = {**self._shared, "gossip_port": self._gossip_ports[name]}
            node = RunningNode(config_of(self._folder, name, cluster=cluster))
            self._running[name] = (node, self._tasks.create_task(node.run()))
        for name in names:
            _, server = await self._running[name][0].started
            self.ports[name] = server.http_port

    async def end(self, name: str) -> None:
        node, task = self._running.pop(name)
        node.end()
        await task

    async def end_all(self) -> None:
        for name in tuple(self._running):
            await self.end(name)

    def has_ended(self, name: str) -> None:
        asyncio.run_coroutine_threadsafe(self.end(name), self._loop).result()

    def has_started(self, name: str) -> None:
        asyncio.run_coroutine_threadsafe(self.start(name), self._loop).result()


@asynccontextmanager
async def running_nodes(folder: Path, endpoint: str) -> AsyncIterator[Nodes]:
    async with asyncio.TaskGroup() as tasks:
        nodes = Nodes(folder, endpoint, tasks)
        await nodes.start(*NAMES)
        try:
            yield nodes
        finally:
            await nodes.end_all()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory, member) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("nodes")
    with aside(lambda: running_nodes(folder, member.endpoint)) as it:
        yield it


def leaders(console: Console, topic: str) -> dict[int, str]:
    found = console.ask("GET", "/cluster/replication")["partitions"]
    return {each["partition"]: each["leader"] for each in found if each["topic"] == topic}


def fill(console: Console) -> list[str]:
    """Have a topic that all nodes lead a part of, groups with homes on several, dead letters."""
    console.ask("POST", "/topics", {"topic": "orders", "partitions": 6})
    for number in range(60):
        body = {"value": f"{number}", "key": f"{number}"}
        console.ask("POST", "/topics/orders/messages", body)
    groups = [f"group-{number}" for number in range(6)]
    for group in groups:  # their homes are on several nodes
        path = f"/topics/orders/messages?group={group}&limit=1&wait=10s&start=earliest"
        [taken] = console.ask("GET", path)["messages"]
        done = {"group": group, "reject": [taken["lease"]], "leave": True}
        console.ask("POST", "/topics/orders/acks", done)
    return groups


def shows_lists_of_all_nodes(console: Console, groups: list[str]) -> None:
    page = console.page
    found = console.ask("GET", "/topics/orders")["partitions"]
    offsets = sum(each["endOffset"] for each in found)
    row = ROW.format(repr("orders" + TAB))
    page.wait(f"{row} && {CELLS.format(row)}[4] === '{offsets}'")
    assert "without leader" not in page.value("document.querySelector('main').innerText")
    console.go("groups", groups[0])
    page.wait("document.querySelectorAll('tbody tr').length === 6")
    console.go("dead-letters", "orders")
    row = ROW.format(repr("orders"))
    page.wait(f"{row} && {CELLS.format(row)}[1] === '6'")
    console.go("", "Nodes")
    page.wait("document.querySelectorAll('main .tag.good').length === 3")
    past = console.ask("GET", "/history")
    assert past["unreachable"] == []
    assert set(past["series"]) == set(console.ask("GET", "/history?node=b")["series"])


def moves_a_leader(console: Console) -> None:
    before = leaders(console, "orders")
    target = next(name for name in NAMES if name != before[0])
    console.go("cluster", "Members")
    row = ROW.format(repr(f"orders{TAB}0"))
    console.wait(f"!!{row}")
    console.do(f"press('Move', {row})")
    said = console.submit(target=target, leader=True)
    assert f"waterclock cluster move orders 0 --to {target} --leader" in said
    console.page.wait(f"{CELLS.format(row)}[2] === '{target}'")


def drains_a_node(console: Console) -> None:
    """Drain a node, and use it again."""
    page = console.page
    console.do(f"press('Drain', {ROW.format(repr('c'))})")
    assert "waterclock cluster drain c" in console.submit()
    page.wait(f"{ROW.format(repr('c'))}.innerText.includes('Use again')")
    console.do(f"press('Use again', {ROW.format(repr('c'))})")
    assert "--undo" in console.submit()
    page.wait(f"{ROW.format(repr('c'))}.innerText.includes('Drain')")


def goes_on_without_a_node(console: Console, nodes: Nodes) -> None:
    """Look at a topic while a node ends that leads a part of it, and see it come back."""
    page = console.page
    gone = next(name for name in leaders(console, "orders").values() if name != "a")
    console.go("topics/orders", "Partitions")
    page.wait(f"document.querySelector('main').innerText.includes({json.dumps(gone)})")
    nodes.has_ended(gone)
    led = "[...document.querySelectorAll('[aria-label=partitions] tbody tr')]"
    has_leader = f"(r) => !['', '{gone}'].includes(r.cells[5].innerText)"
    page.wait(f"{led}.length === 6 && {led}.every({has_leader})")
    console.ask("POST", "/topics/orders/messages", {"value": "after", "key": "k"})
    console.do("press('Follow live')")
    console.shows("waiting for messages")
    console.ask("POST", "/topics/orders/messages", {"value": "seen live", "key": "k"})
    console.shows("seen live")
    console.go("cluster", "Members")
    page.wait(f"!/\\balive\\b/.test({ROW.format(repr(gone))}?.innerText ?? '')")

    nodes.has_started(gone)
    page.wait(f"/\\balive\\b/.test({ROW.format(repr(gone))}?.innerText ?? '')")
    console.go("", "Nodes")
    page.wait("document.querySelectorAll('main .tag.good').length === 3")


def test_one_page_shows_all_nodes_while_leaders_move_and_a_node_dies_and_comes_back(page, nodes):
    console = Console(page, nodes.ports["a"])
    groups = fill(console)
    console.open("topics?filter=orders")
    shows_lists_of_all_nodes(console, groups)
    moves_a_leader(console)
    drains_a_node(console)
    goes_on_without_a_node(console, nodes)
    assert page.value("window.wrong") == []
    page.open("about:blank")
