"""Rounds of topics, one after the other on one cluster, each judged as it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.chaos.network import Namespaces
from tests.cluster.chaos.program import NewBugs, described
from tests.cluster.chaos.topics.conductor import Conductor
from tests.cluster.chaos.topics.evidence import Evidence
from tests.cluster.chaos.topics.fleet import SMALL, EtcdProcess, TopicNode, small_disk
from tests.cluster.chaos.topics.oracle import verdict_on
from tests.cluster.chaos.topics.plan import NODES, Plan
from tests.cluster.chaos.topics.record import RoundRecord
from tests.cluster.chaos.topics.spark_reads import SparkReads, spark_reads
from tests.kit.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RoundResult:
    """A round that was judged."""

    plan: Plan
    verdict: Verdict
    seconds: float
    outages_ms: list[int]
    """How long nobody acknowledged anything, after each leader that went."""
    kept: Path | None = None
    """Where it can be looked into, if something was found."""

    def as_json(self) -> dict[str, object]:
        """Return all that is known of it."""
        return {
            **described(self.plan, self.seconds),
            "outages_ms": self.outages_ms,
            "kept": str(self.kept or ""),
            **self.verdict.as_json(),
        }


class Rounds:
    """Plays rounds on processes that run."""

    def __init__(
        self,
        nodes: list[TopicNode],
        etcd: EtcdProcess | None,
        network: Namespaces,
        spark: SparkReads | None,
        evidence: Path,
    ) -> None:
        self._nodes = nodes
        self._etcd = etcd
        self._network = network
        self._spark = spark
        self._new_bugs = NewBugs()
        logs = [node.log for node in nodes] + ([] if etcd is None else [etcd.log])
        self._evidence = Evidence(evidence, logs)

    async def play(self, plan: Plan) -> RoundResult:
        """Play one round, and judge it. Whoever ended by itself is found, and started again."""
        record = RoundRecord(plan)
        self._evidence.begin()
        spark = self._spark if plan.has_spark else None
        await Conductor(record, self._nodes, self._etcd, self._network, spark).run()
        ended = [node for node in self._nodes if not node.is_running]
        errors = [
            *self._new_bugs.of(self._nodes),
            *(f"{node.name} ended by itself" for node in ended),
        ]
        verdict = verdict_on(record, errors=errors)
        kept = self._evidence.keep(record, verdict)
        for node in ended:
            await node.start()
        return RoundResult(plan, verdict, record.seconds, record.outages_ms(), kept)


@asynccontextmanager
async def cluster(
    folder: Path,
    evidence: Path,
    *,
    is_alone: bool = False,
    has_spark: bool = False,
    plant: str = "",
) -> AsyncIterator[Rounds]:
    """Run nodes and an etcd in a network of their own; or a node that is alone, and needs none.
    What explains a finding is kept in `evidence`."""
    count = 1 if is_alone else NODES
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(NODES + 1))
        small = 0 if is_alone else SMALL
        stack.enter_context(small_disk(folder / f"node-{small + 1}"))
        etcd = None
        if not is_alone:
            etcd = EtcdProcess(network, folder)
            stack.callback(etcd.end)
            await etcd.start()
        endpoint = "" if etcd is None else etcd.endpoint
        nodes = [TopicNode(index, network, folder, endpoint, plant) for index in range(count)]
        for node in nodes:
            stack.callback(node.end)
        async with asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(node.start())
        spark = stack.enter_context(spark_reads(nodes)) if has_spark else None
        yield Rounds(nodes, etcd, network, spark, evidence)
