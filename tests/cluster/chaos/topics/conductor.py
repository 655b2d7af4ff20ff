"""The conductor: plays a round by its plan on processes that run, and brings home its record.

It decides nothing but who leads at the moment: what happens when is in the plan. Whoever was
killed is started again, and at the end every partition must have a leader and all its replicas.
"""

import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.cluster.chaos.network import Namespaces
from tests.cluster.chaos.topics.fleet import ETCD, SMALL, EtcdProcess, TopicNode
from tests.cluster.chaos.topics.grpc_clients import grpc_clients
from tests.cluster.chaos.topics.load import Load
from tests.cluster.chaos.topics.plan import Fault, Role, Step
from tests.cluster.chaos.topics.record import (
    Performed,
    RoundRecord,
    RunClock,
    last_due_ms,
    undelivered,
)
from tests.cluster.chaos.topics.spark_reads import SparkReads
from tests.cluster.history.events import Ended, Healed, Led

HEAL_S_MAX = 40.0
LOOK_S = 0.2
FIRED_MS = 3_000
"""After the last due time, what is due has fired and was read."""
SPARK_PAUSE_S = 1.0
META, GROUPS = "__meta", "__groups"


class Conductor:
    """Plays one round."""

    def __init__(
        self,
        record: RoundRecord,
        nodes: Sequence[TopicNode],
        etcd: EtcdProcess | None,
        network: Namespaces,
        spark: SparkReads | None = None,
    ) -> None:
        plan = record.plan
        self._spark = spark
        self._record = record
        self._nodes = nodes
        self._etcd = etcd
        self._network = network
        self._rng = Random(f"{plan.seed}:{plan.number}:roles")
        self._clock = RunClock()
        self._load = Load(record, self._clock, nodes)

        self._led: set[tuple[str, str, int]] = set()

    async def run(self) -> None:
        """Play it; what was is in the record."""
        begun_s, load = time.monotonic(), self._load
        connected = grpc_clients(self._record, self._clock, load.topic, self._nodes)
        async with connected as clients, asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(load.watch_lag()), tasks.create_task(self._watch())]
            await load.make_topic()
            publishing = tasks.create_task(load.publish(clients))
            reading = tasks.create_task(load.read(clients))
            by_spark = tasks.create_task(self._read_by_spark())
            await self._play()
            self._record.events.append(Healed(self._clock.now_ms()))
            self._record.late.append(await self._until_healthy())
            left_ms = self._record.plan.load_ms - self._clock.now_ms()
            await asyncio.sleep(max(0, left_ms) / 1_000)
            load.stop_publishing()
            # Publishers end when they know what became of all; if not, they are stuck.
            await asyncio.wait([publishing], timeout=HEAL_S_MAX)
            over_ms = last_due_ms(self._record.events) + FIRED_MS
            await asyncio.sleep(max(0, over_ms - self._clock.now_ms()) / 1_000)
            await self._until_drained()
            load.stop()
            await asyncio.wait([publishing, reading, by_spark])
            for task in watching:
                task.cancel()
        await load.read_copies()
        self._record.events.append(Ended(self._clock.now_ms()))
        self._record.seconds = time.monotonic() - begun_s

    async def _until_drained(self) -> None:
        """Wait until groups were given all there is; if they never are, the oracle says so."""
        deadline_s = time.monotonic() + HEAL_S_MAX
        while undelivered(self._record):
            if time.monotonic() > deadline_s:
                await self._note_stuck()
                return
            await asyncio.sleep(LOOK_S)

    async def _note_stuck(self) -> None:
        """Have all nodes say how they are while whatever is stuck still is."""
        self._record.stuck.append(f"at {self._clock.now_ms()}")
        for node in self._nodes:
            node.tell_tasks()
            self._record.stuck += await node.state(self._load.topic)

    async def _read_by_spark(self) -> None:
        """Have Spark read the whole topic, over and over, and once more when all is well."""
        while self._spark is not None:
            is_last = self._load.is_over
            found = await asyncio.to_thread(self._spark.read, self._load.topic)
            self._record.counts["spark reads" if found is not None else "spark failures"] += 1
            for partition, rows in (found or {}).items():
                self._load.read_by_spark(partition, rows)
            if is_last:
                if found is None:
                    self._record.late.append("Spark cannot read")
                return
            await asyncio.sleep(SPARK_PAUSE_S)

    # Faults

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for step in self._record.plan.steps:
                tasks.create_task(self._perform(step))

    async def _perform(self, step: Step) -> None:
        await asyncio.sleep(max(0, step.at_ms - self._clock.now_ms()) / 1_000)
        if step.role is Role.ETCD:
            assert self._etcd is not None
            from_ms = self._clock.now_ms()
            await self._harm_etcd(step, self._etcd)
            self._performed(step, "etcd", from_ms, ())
            return
        for node, led in await self._chosen(step.role):
            async with node.lock:  # whoever is being started is not killed again meanwhile
                from_ms = self._clock.now_ms()
                await self._harm(step, node)
            self._performed(step, node.name, from_ms, led)
        if step.fault is Fault.KILL and step.role is Role.ALL:
            await asyncio.sleep(step.for_ms / 1_000)
            async with asyncio.TaskGroup() as tasks:
                for node in self._nodes:
                    tasks.create_task(self._start(node))

    def _performed(self, step: Step, name: str, from_ms: int, led: tuple[str, ...]) -> None:
        takes_over = step.fault in (Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.WIPE)
        done = Performed(step, name, from_ms, self._clock.now_ms(), led if takes_over else ())
        self._record.performed.append(done)

    async def _harm(self, step: Step, node: TopicNode) -> None:
        others = {each.index for each in self._nodes if each is not node}
        match step.fault:
            case Fault.KILL | Fault.WIPE:
                node.process.kill()
                if step.role is Role.ALL:
                    return
                if step.fault is Fault.WIPE:
                    node.wipe()
                await self._wait(step)
                await self._start(node)
            case Fault.RESTART:
                await node.stop()
                await self._start(node)
                await self._until_healthy()
            case Fault.PAUSE:
                node.process.pause()
                await self._wait(step)
                node.process.resume()
            case Fault.CUT:
                await self._block(step, {node.index: others | {ETCD}, **_each(others, node.index)})
            case Fault.NO_ETCD:
                await self._block(step, {node.index: {ETCD}, ETCD: {node.index}})
            case Fault.ONE_WAY:
                await self._block(step, {node.index: others})
            case Fault.BRIDGE:
                await self._block(step, {one: others - {one} for one in others})
            case Fault.LOSS:
                self._network.harm(node.index, loss=step.loss)
                if node is self._nodes[-1]:  # all have it by now
                    await self._wait(step)
                    for each in self._nodes:
                        self._network.harm(each.index)
            case Fault.SLOW:
                self._network.slow(node.index, is_slow=True)
                await self._wait(step)
                self._network.slow(node.index, is_slow=False)
            case Fault.CLOCK:
                node.set_clock(step.clock_ms)
                await self._wait(step)
                node.set_clock(0)
            case Fault.FULL:
                await asyncio.to_thread(node.fill)
                await self._wait(step)
                node.unfill()

    async def _harm_etcd(self, step: Step, etcd: EtcdProcess) -> None:
        match step.fault:
            case Fault.KILL:
                etcd.end()
                await self._wait(step)
                await etcd.start()
            case Fault.PAUSE:
                etcd.process.pause()
                await self._wait(step)
                etcd.process.resume()
            case _:
                assert step.fault is Fault.CUT, step
                everyone = {node.index for node in self._nodes}
                await self._block(step, {ETCD: everyone, **_each(everyone, ETCD)})

    async def _start(self, node: TopicNode) -> None:
        """Start a node; one that does not come is told of, and gets a second chance."""
        try:
            await node.start()
        except (TimeoutError, RuntimeError) as error:
            self._record.late.append(f"{node.name} does not start: {error!r}")
            node.end()
            await node.start()

    async def _wait(self, step: Step) -> None:
        await asyncio.sleep(step.for_ms / 1_000)

    async def _block(self, step: Step, blocked: dict[int, set[int]]) -> None:
        """Have some not reach others, for a while."""
        for index, targets in blocked.items():
            self._network.harm(index, cut_off=sorted(targets))
        await self._wait(step)
        for index in blocked:
            self._network.harm(index)

    # Who is who

    async def _chosen(self, role: Role) -> list[tuple[TopicNode, tuple[str, ...]]]:
        """Return the nodes of a role, with the partitions of the round that each leads."""
        topic = self._load.topic
        leaders = {
            (each["topic"], each["partition"]): each["leader"] for each in await self._partitions()
        }
        by_name = {node.name: node for node in self._nodes}
        first = by_name.get(leaders.get((topic, 0), ""), self._nodes[0])
        others = [node for node in self._nodes if node is not first]
        self._rng.shuffle(others)
        match role:
            case Role.ALL:
                chosen = list(self._nodes)
            case Role.SMALL:
                chosen = [self._nodes[min(SMALL, len(self._nodes) - 1)]]
            case Role.FOLLOWER:
                chosen = [(others or [first])[0]]
            case Role.HOME | Role.META:
                kind = GROUPS if role is Role.HOME else META
                names = sorted({name for (of, _), name in leaders.items() if of == kind and name})
                chosen = [by_name[self._rng.choice(names)] if names else first]
            case _:
                chosen = [first]
        return [(node, _led_by(node.name, topic, leaders)) for node in chosen]

    async def _partitions(self) -> list[dict[str, Any]]:
        """Return how partitions stand, as the first node knows that answers."""
        for node in self._nodes:
            if node.is_running and (found := await node.partitions()):
                return found
        return []

    async def _watch(self) -> None:
        """Note who leads, until cancelled."""
        while True:
            for view in await self._partitions():
                place = f"{view['topic']}/{view['partition']}"
                epoch, leader = view["epoch"], view["leader"]
                is_led = view["state"] == "leading" and leader  # "": one that is not known just now
                if is_led and (leader, place, epoch) not in self._led:
                    self._led.add((leader, place, epoch))
                    self._record.events.append(Led(leader, place, epoch, self._clock.now_ms()))
            await asyncio.sleep(LOOK_S)

    async def _until_healthy(self) -> str:
        """Wait until all is as it should be; return what is not, if that takes too long."""
        deadline_s = time.monotonic() + HEAL_S_MAX
        while problem := await self._problem():
            if time.monotonic() > deadline_s:
                return problem
            await asyncio.sleep(LOOK_S)
        return ""

    async def _problem(self) -> str:
        for node in self._nodes:
            if not node.is_running:
                return f"{node.name} ended by itself"
            if not await node.is_ready():
                return f"{node.name} is not ready"
        if self._etcd is None:
            return ""
        views = await self._nodes[0].partitions()
        if not any(view["topic"] == self._load.topic for view in views):
            return "the topic is not replicated"
        for view in views:
            place = f"{view['topic']}/{view['partition']}"
            if not view["leader"]:
                return f"{place} has no leader"
            away = [each for each in view["replicas"] if each["isVoter"] and not each["isLinked"]]
            if away:
                return f"{place} lacks {', '.join(each['name'] for each in away)}"
        return ""


def _each(indexes: set[int], target: int) -> dict[int, set[int]]:
    return {index: {target} for index in indexes}


def _led_by(name: str, topic: str, leaders: dict[tuple[str, int], str]) -> tuple[str, ...]:
    return tuple(f"{topic}/{at}" for (of, at), who in leaders.items() if (of, who) == (topic, name))
