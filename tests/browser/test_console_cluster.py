"""The console of one node of a cluster: it shows all of them, and goes on while leaders move, and
while nodes are killed and come back. Nobody reloads the page meanwhile."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.console import Console, Refused
from tests.cluster.conftest import member
from tests.kit.ports import free_rows

__all__ = ["member"]

pytestmark = pytest.mark.etcd
NAMES = "abc"
PROGRAM = """
import json, sys, uvloop
from pathlib import Path
from tests.cluster.joined import config_of
from waterclock.server.process import run_node
folder, name, settings, etcd, *seeds = sys.argv[1:]
cluster = {"etcd": (etcd,), **json.loads(settings)}
config = config_of(Path(folder), name, *seeds, cluster=cluster)
uvloop.run(run_node(config, on_ready=lambda at: print(at.http, flush=True)))
"""
TAB = "\t"
CELLS = "[...{}.cells].map((cell) => cell.innerText)"
SAID = "[...row.cells].map((cell) => cell.innerText.trim()).join('\\t')"
ROW = f"[...document.querySelectorAll('tr')].find((row) => {SAID}.startsWith({{}}))"


class Nodes:
    """Three nodes, each a process of its own: what is killed tells nobody that it goes."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        rows = free_rows(2, len(NAMES))
        gossip_ports, http_ports = (range(first, first + len(NAMES)) for first in rows)
        self._shared = (endpoint, *(f"127.0.0.1:{port}" for port in gossip_ports))
        self.ports = dict(zip(NAMES, http_ports, strict=True))
        self._settings = {
            name: {"expect": len(NAMES), "gossip_port": port, "http_port": self.ports[name]}
            for name, port in zip(NAMES, gossip_ports, strict=True)
        }
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, *names: str) -> None:
        """Start nodes side by side: a cluster forms when all of them are there."""
        for name in names:
            (self._folder / name).mkdir(exist_ok=True)
            settings = json.dumps(self._settings[name])
            self._running[name] = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(self._folder), name, settings, *self._shared],
                cwd=Path(__file__).parents[2],
                stdout=subprocess.PIPE,
                text=True,
            )
        for name in names:
            ready = self._running[name].stdout
            assert ready is not None
            assert ready.readline(), f"{name} does not start"

    def kill(self, name: str) -> None:
        with self._running.pop(name) as process:
            process.kill()

    def kill_all(self) -> None:
        for name in tuple(self._running):
            self.kill(name)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory, member) -> Iterator[Nodes]:
    them = Nodes(tmp_path_factory.mktemp("nodes"), member.endpoint)
    try:
        them.start(*NAMES)
        yield them
    finally:
        them.kill_all()


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
        path = f"/topics/orders/messages?group={group}&limit=1&wait=25s&start=earliest"
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


def replaces_a_node(console: Console, gone: str) -> None:
    """Have a node that is lost replaced by another, and think better of it."""
    page, row = console.page, ROW.format(repr(gone))
    heir = next(name for name in NAMES if name not in ("a", gone))
    console.wait(f"{row}?.innerText.includes('Replace…')")
    there = ROW.format(repr(heir))
    assert "Replace" not in page.value(f"{there}.innerText")
    console.do(f"press('Replace…', {row})")
    said = console.submit(target=heir)
    assert f"waterclock cluster replace {gone} {heir}" in said
    assert f'/cluster/replace -d \'{{"node":"{gone}","target":"{heir}"}}\'' in said
    page.wait(f"{row}.innerText.includes('replaced by {heir}')")
    [order] = console.ask("GET", "/cluster/placement")["drains"]
    assert (order["node"], order["target"]) == (gone, heir)
    console.do(f"press('Use again', {row})")
    console.submit()
    page.wait(f"{row}.innerText.includes('Drain')")


def goes_on_without_a_leader(console: Console, nodes: Nodes) -> None:
    """Look at a topic while a node is killed that leads a part of it, and see it come back."""
    page = console.page
    gone = next(name for name in leaders(console, "orders").values() if name != "a")
    console.go("topics/orders", "Partitions")
    page.wait(f"document.querySelector('main').innerText.includes({json.dumps(gone)})")
    nodes.kill(gone)
    led = "[...document.querySelectorAll('[aria-label=partitions] tbody tr')]"
    has_leader = f"(r) => !['', '{gone}'].includes(r.cells[5].innerText)"
    page.wait(f"{led}.length === 6 && {led}.every({has_leader})")
    console.ask("POST", "/topics/orders/messages", {"value": "after", "key": "k"})
    console.do("press('Follow live')")
    console.shows("waiting for messages")
    console.ask("POST", "/topics/orders/messages", {"value": "seen live", "key": "k"})
    console.shows("seen live")
    console.go("", "Nodes")
    console.shows(f"{gone} does not answer. look after it")
    console.wait(
        "/underReplicated since [^]*: \\d+ partitions? with a replica/.test($('main').innerText)"
    )
    console.go("cluster", "Members")
    page.wait(f"!/\\balive\\b/.test({ROW.format(repr(gone))}?.innerText ?? '')")
    replaces_a_node(console, gone)

    nodes.start(gone)
    page.wait(f"/\\balive\\b/.test({ROW.format(repr(gone))}?.innerText ?? '')")
    console.go("", "Nodes")
    page.wait("document.querySelectorAll('main .tag.good').length === 3")
    page.wait("!document.querySelector('main .notice.warn b')")  # nothing is wrong any more


def makes(console: Console, topic: str) -> bool:
    """Have a topic made, or be told that nobody is known yet who leads, now that one was killed:
    with `ifAbsent` it is asked for again, whether it was made or not."""
    try:
        console.ask("POST", "/topics", {"topic": topic, "ifAbsent": True})
    except Refused as refused:
        if refused.status != 503:
            raise
        return False
    return True


def goes_on_when_its_own_node_is_back(console: Console, nodes: Nodes) -> None:
    """Look at a page of a node that is killed: it says so, and goes on when the node is back."""
    page = console.page
    console.go("topics?filter=orders", "orders")
    nodes.kill("a")
    console.shows("not connected")
    console.shows("The node does not answer")
    beside = Console(page, nodes.ports["b"])
    beside.until(lambda: makes(beside, "orders-meanwhile"), seconds_max=60)
    nodes.start("a")
    console.shows("orders-meanwhile")
    page.wait("document.querySelector('.away').classList.contains('hidden')")
    console.go("", "Nodes")
    page.wait("document.querySelectorAll('main .tag.good').length === 3")


def test_one_page_shows_all_nodes_while_leaders_move_and_nodes_are_killed(page, nodes):
    console = Console(page, nodes.ports["a"])
    groups = fill(console)
    console.open("topics?filter=orders")
    shows_lists_of_all_nodes(console, groups)
    moves_a_leader(console)
    drains_a_node(console)
    goes_on_without_a_leader(console, nodes)
    goes_on_when_its_own_node_is_back(console, nodes)
    assert page.value("window.wrong") == []
    page.open("about:blank")
