"""What the nodes of a cluster count; the dashboard, the alerts and the page speak of all of it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.clustered import Member, meet, member
from tests.cluster.replicated import FakeReplication, partition
from tests.kit.monitoring import check_board, family_of, rules, samples_of, shown, watched
from tests.kit.promql import Known
from tests.server.http_client import raw_client, until
from tests.server.served import running_server
from tests.server.test_metrics import scrape, value
from waterclock.cluster.gossip.agent import AgentSettings, running_agent
from waterclock.cluster.gossip.config import GossipConfig
from waterclock.cluster.gossip.discovery import Seeds
from waterclock.cluster.node_tags import NodeTags
from waterclock.model.sections import NodeConfig
from waterclock.server.cluster.membership import Membership
from waterclock.server.cluster.metrics import BREAKER_STATES, DIRECTIONS, MEMBER_STATES
from waterclock.server.cluster.processes.connections import SharedConnections
from waterclock.server.cluster.replication_status import ROLES, InstallCounts
from waterclock.server.families import PREFIX

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "cluster.md"
OF_A_CLUSTER = (
    "cluster_", "ring_", "gossip_", "forward", "breakers", "handover_", "hot_stream",
    "replication_", "coordinator_",
)  # fmt: skip
HEAD = "| metric | labels | means |\n|---|---|---|\n"


@asynccontextmanager
async def gossiping(folder: Path, *names: str) -> AsyncIterator[list[Member]]:
    """Run nodes that know of each other by gossip."""
    found: list[Member] = []
    async with AsyncExitStack() as stack:
        for name in names:
            (folder / name).mkdir()
            node = NodeConfig(name=name, data_folder=str(folder / name))
            it = await stack.enter_async_context(member(folder, name, node=node))
            seeds = [":".join(map(str, membership_of(each).agent.address)) for each in found]
            await stack.enter_async_context(_membership(it, seeds))
            found.append(it)
        await until(lambda: all(len(membership_of(each)) == len(names) for each in found))
        await meet(*found)
        yield found


def membership_of(it: Member) -> Membership:
    assert it.cluster.membership is not None
    return it.cluster.membership


@asynccontextmanager
async def _membership(it: Member, seeds: list[str]) -> AsyncIterator[None]:
    host, port = it.cluster.peers.address
    tags = NodeTags("test", it.server.addresses.http, host, port, 200)
    loop = asyncio.get_running_loop()
    cluster = it.cluster
    found = Membership(
        it.name, tags, cluster.peers, cluster.ownership, loop=loop, now_ms=it.node.clock.now_ms
    )
    settings = AgentSettings(
        name=it.name,
        bind=("127.0.0.1", 0),
        tags=tags.encode(),
        gossip=GossipConfig.local(),
        seeds=Seeds(seeds),
    )
    async with running_agent(settings, found.handle) as found.agent:
        cluster.membership = found
        yield
        found.close()


async def sent(it: Member, stream: str) -> None:
    async with raw_client(it.server.http_port) as client:
        answer = await client.post("/streams/send", {"streamId": stream, "message": 1})
    assert answer.status == 200, answer.body


async def test_nodes_count_members_gossip_links_and_what_they_ask_each_other(tmp_path):
    async with gossiping(tmp_path, "a", "b") as (first, second):
        theirs = [f"s{n}" for n in range(20) if first.cluster.ownership.owner(f"s{n}") == "b"]
        for stream in theirs:
            await sent(first, stream)
        samples, other = await scrape(first), await scrape(second)

        assert value(samples, "cluster_members", state="alive") == 2
        assert value(samples, "cluster_members", state="failed") == 0
        assert value(samples, "cluster_links") == 1
        assert value(samples, "ring_nodes") == 2
        assert value(samples, "ring_version") == value(other, "ring_version") > 0
        shares = [value(each, "ring_share") for each in (samples, other)]
        assert sum(shares) == pytest.approx(1)
        assert value(samples, "forwarded_requests_total") == len(theirs) > 0
        assert value(samples, "forwards_waiting") == 0
        assert value(samples, "breakers", state="closed") == 1
        assert value(samples, "breakers", state="half_open") == 0
        assert value(samples, "gossip_score") == 0
        assert value(samples, "hot_streams") == value(samples, "hot_stream_partitions") == 0
        assert value(samples, "gossip_refused_packets_total") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="has no abstract names")
async def test_a_node_counts_the_connections_that_went_to_other_processes_and_came(tmp_path):
    async with gossiping(tmp_path, "a") as (it,):
        assert it.cluster.forwarder is not None
        shared = SharedConnections(it.server._http, f"test-{it.server.http_port}", "a")
        it.cluster.forwarder.shared_connections = shared
        with closing(shared):
            shared.handed, shared.taken = 3, 2
            samples = await scrape(it)

    assert value(samples, "handover_connections_total", direction="sent") == 3
    assert value(samples, "handover_connections_total", direction="received") == 2


async def test_a_node_counts_the_partitions_it_leads_and_follows(tmp_path):
    async with gossiping(tmp_path, "a") as (it,):
        it.cluster.replication = FakeReplication(
            [
                partition("orders", 0, leader="a", lag=7),
                partition("orders", 1, leader="a", away="c"),
                partition("orders", 2, leader="b", away="c"),
                partition("orders", 3, leader=""),
                partition("lacking", 0, leader="a", factor=4),
                partition("lacking", 1, leader="a", learner="c"),
                partition("enough", 0, leader="a", factor=2, learner="c"),
            ],
            commits=9,
            elections=2,
            is_coordinator_away=True,
            installs=InstallCounts(begun=5, finished=3, failed=1, received_bytes=77),
        )
        samples = await scrape(it)

    assert value(samples, "replication_partitions", role="leader") == 5
    assert value(samples, "replication_partitions", role="follower") == 2
    assert value(samples, "replication_leaderless_partitions") == 1
    assert value(samples, "replication_under_replicated_partitions") == 3
    assert value(samples, "replication_lag", topic="orders", partition="0") == 7
    assert value(samples, "replication_epoch", topic="orders", partition="1") == 3
    led_by_others = {labels for name, labels in samples if name.endswith("replication_lag")}
    assert len(led_by_others) == 5
    assert value(samples, "replication_commits_total") == 9
    assert value(samples, "replication_elections_total") == 2
    for event, count in (("begun", 5), ("finished", 3), ("failed", 1)):
        assert value(samples, "replication_installs_total", event=event) == count
    assert value(samples, "replication_install_bytes_total") == 77
    assert value(samples, "coordinator_away") == 1


async def test_a_node_without_others_shows_none_of_this(tmp_path):
    async with running_server(tmp_path) as it:
        names = {name.removeprefix(PREFIX) for name, _ in await scrape(it)}

    assert [name for name in names if name.startswith(OF_A_CLUSTER)] == []


# Those who watch


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Metric]:
    """What a node with others shows beside what every node does."""

    async def scraped(folder: Path) -> str:
        async with gossiping(folder, "a") as (it,), raw_client(it.server.http_port) as client:
            it.cluster.replication = FakeReplication([partition("orders", 0, leader="a")])
            return (await client.get("/metrics")).body.decode()

    text = asyncio.run(scraped(tmp_path_factory.mktemp("node")))
    shown = text_string_to_metric_families(text)
    return [each for each in shown if each.name.removeprefix(PREFIX).startswith(OF_A_CLUSTER)]


@pytest.fixture(scope="module")
def known(families: list[Metric]) -> Known:
    states = {*MEMBER_STATES, *(state.replace(" ", "_") for state in BREAKER_STATES)}
    values = {"state": states, "direction": DIRECTIONS, "role": ROLES}
    return Known(labels=samples_of(families), values=values)


def test_the_dashboard_is_one_that_grafana_imports():
    check_board("cluster", {"job"})


def test_the_dashboard_shows_every_metric_there_is_and_no_other(known):
    there = {family_of(name) for name in known.labels}

    assert {family_of(name) for name in shown("cluster", known)} == there


def test_alerts_ask_for_what_a_node_shows_and_the_page_names_them(known):
    alerts = rules("cluster")
    page = (DOCS / "observability.md").read_text()

    assert watched("cluster", known)
    assert {rule["labels"]["severity"] for rule in alerts} == {"page", "ticket"}
    assert [rule["alert"] for rule in alerts if rule["alert"] not in page] == []
    assert "alerts/cluster.yml" in page
    assert "dashboards/cluster.json" in page


def test_the_table_of_metrics_is_that_of_the_code(families):
    made = [
        (
            each.name + ("_total" if each.type == "counter" else ""),
            " ".join(f"`{label}`" for label in each.samples[0].labels),
            each.documentation,
        )
        for each in families
    ]
    rows = "".join(f"| `{name}` | {labels} | {says} |\n" for name, labels, says in sorted(made))
    before, head, after = PAGE.read_text().partition(HEAD)
    if os.environ.get("WATERCLOCK_REWRITE"):
        PAGE.write_text(before + head + rows)

    assert after == rows, "WATERCLOCK_REWRITE=1 pytest tests/server/test_cluster_metrics.py"
