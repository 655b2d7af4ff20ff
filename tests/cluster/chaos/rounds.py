"""Rounds, one after the other on one cluster, each judged as it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote, urlsplit

from tests.cluster.chaos.conductor import Conductor, agreement
from tests.cluster.chaos.fleet import PLANTED, WATERCLOCK, ClusterNode
from tests.cluster.chaos.network import Namespaces
from tests.cluster.chaos.oracle import judge
from tests.cluster.chaos.plan import NODES, Plan
from tests.cluster.chaos.program import NewBugs
from tests.cluster.chaos.report import RoundResult
from tests.stores.servers import postgres
from waterclock.server.cluster.ownership import RingOwnership


def owner_of(nodes: frozenset[str], stream: str) -> str:
    """Name the owner of a stream among nodes, as nodes do."""
    ownership = RingOwnership("")
    ownership.update(dict.fromkeys(nodes, ""))
    return ownership.ring.owner(stream)


class Rounds:
    """Plays rounds on a cluster that runs."""

    def __init__(self, nodes: list[ClusterNode], network: Namespaces, folder: Path) -> None:
        self._nodes = nodes
        self._folder = folder
        self._network = network
        self._new_bugs = NewBugs()
        self._owners: dict[tuple[frozenset[str], str], str] = {}

    async def play(self, plan: Plan) -> RoundResult:
        """Play one round, and judge it. Whoever ended by itself is found, and started again."""
        history = await Conductor(plan, self._nodes, self._network).run()
        file = self._folder / f"round-{plan.seed}-{plan.number}.json"
        file.write_text(json.dumps(asdict(history), default=str))
        ended = [node for node in self._nodes[:NODES] if not node.is_running]
        errors = [
            *self._new_bugs.of(self._nodes),
            *(f"{node.name} ended by itself" for node in ended),
        ]
        verdict = judge(history, self._owner_of, errors=errors)
        for node in ended:
            await node.start()
        return RoundResult(plan, verdict, history.seconds, history.heal_s)

    def _owner_of(self, nodes: frozenset[str], stream: str) -> str:
        if (nodes, stream) not in self._owners:
            self._owners[nodes, stream] = owner_of(nodes, stream)
        return self._owners[nodes, stream]


@asynccontextmanager
async def cluster(folder: Path, *, plant: str = "") -> AsyncIterator[Rounds]:
    """Run a database and nodes in a network of their own; perhaps with a bug in each of them."""
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(NODES + 1))
        backend = stack.enter_context(postgres.running(folder / "postgres"))
        store = _by_socket(backend.fresh_url(), backend.server)
        program = (PLANTED, plant) if plant else (WATERCLOCK,)
        settings = {"streams.store": store}
        nodes = [
            ClusterNode(index, network, folder, settings, program) for index in range(NODES + 1)
        ]
        for node in nodes:
            stack.callback(node.end)
        async with asyncio.TaskGroup() as tasks:
            for node in nodes[:NODES]:
                tasks.create_task(node.start())
        agreed_s, views = await agreement(nodes[:NODES])
        if agreed_s is None:
            raise RuntimeError(f"the nodes do not find each other: {views}")
        yield Rounds(nodes, network, folder)


def _by_socket(url: str, server: object) -> str:
    """Return where a server is by its socket in the file system, which all namespaces share."""
    assert isinstance(server, postgres.Postgres)
    parts = urlsplit(url)
    place = f"host={quote(str(server.socket_folder), safe='')}&port={parts.port}"
    return f"postgresql://{parts.username}@{parts.path}?{place}&{parts.query}"
