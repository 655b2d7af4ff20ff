"""Topics on three nodes while one of them goes: killed, stopped, with ten million pending.

    python -m benchmarks.failover              the table, then one line of JSON
    python -m benchmarks.failover --record     also writes RESULTS.md

Publishers with a connection to each node publish one message after the other. `failover_s` is the
time from the kill of the partition's leader (`failover_stop_s`: from its stop) until one of them
has an acknowledgement of a message that it began to publish after that; `all_acks` until each of
them has. Nobody sees an error: an error ends the benchmark. `rolling_worst_stall_ms` is the longest
that one publish took while the nodes are restarted one after the other, as for an update. `p99` is
of single messages at a steady rate, with and without a follower that stands still. `detect_s` is
the time from a kill until both others take the member for failed, looked at every 50 ms, and beside
it that of Serf's agents (`detect_stop_s`: from its stop, which breaks no link);
`gossip_idle_bytes_s` what a node sends meanwhile if nothing happens. Then a topic of 1,000
partitions, 1,000 groups: what the nodes do when nothing is asked of them, and how long until each
partition of a killed node takes messages.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.client import run_client
from benchmarks.contest import compare
from benchmarks.harness import (
    Bar,
    Report,
    Result,
    Tick,
    is_smoke,
    rounds_of,
    scale,
    scaled,
    whole_batches,
)
from benchmarks.machine import facts, fitting, scratch_folder
from benchmarks.node.fleet import NODES, Fleet, running_fleet, wait_until
from benchmarks.node.publishers import acks_after, worst_stall_s
from benchmarks.peers import serf
from benchmarks.peers.cache import Absent
from benchmarks.peers.lineup import is_wanted
from benchmarks.peers.pacing import Schedule
from benchmarks.peers.server import cpu_seconds
from benchmarks.recording import options_of
from waterclock.client.client import connect

KILLS = 20
STOPS = 5
ROLLS = 3
DETECTIONS = 5
PENDING_KILLS = 3
PENDING = 10_000_000
PENDING_BYTES = 250 * NODES
RATE, SECONDS = 1_000, 5
P99_ROUNDS = 5
PARTITIONS = GROUPS = 1_000
MANY_KILLS = 3
IDLE_S = 10.0
LEASE_S = 3.0
TOPIC, PENDING_TOPIC, MANY_TOPIC, SMALL_TOPIC = "one", "later", "many", "small"

KILL_BAR = Bar(2, is_floor=False)
PENDING_BAR = Bar(3, is_floor=False)
STOP_BAR = Bar(LEASE_S + 1, is_floor=False)
P99_BAR = Bar(2, is_floor=False)
IDLE_BAR = Bar(5, is_floor=False)
MANY_BAR = Bar(5, is_floor=False)


async def p99_ms(address: str, topic: str) -> float:
    """Publish at a steady rate; each message counts from when it was meant to be sent."""
    messages = scaled(RATE * SECONDS, least=50)
    acked = np.zeros(messages)
    async with connect(address) as client, asyncio.TaskGroup() as tasks:
        await client.publish(topic, bytes(128))

        async def publish(number: int) -> None:
            await client.publish(topic, bytes(128))
            acked[number] = time.perf_counter()

        schedule, sent = Schedule(rate=RATE, messages=messages), 0
        while sent < messages:
            for _ in range(schedule.due()):
                tasks.create_task(publish(sent))
                sent += 1
            await asyncio.sleep(schedule.wait_s() if sent < messages else 0)
    return float(np.percentile((acked - schedule.meant) * 1_000, 99))


async def make_topic(fleet: Fleet, topic: str, partitions: int = 1) -> None:
    """Make a topic that all nodes keep."""
    async with connect(fleet.address(fleet.names[0])) as client:
        await client.topics.create(topic, partitions=partitions)


async def make_groups(fleet: Fleet, topic: str, count: int) -> None:
    """Let so many groups read a message of a topic."""
    async with connect(fleet.address(fleet.names[0])) as client:
        await client.publish(topic, b"for all")
        for number in range(count):
            async with client.subscribe(topic, group=f"group-{number}") as messages:
                async for message in messages:
                    message.ack()
                    break


async def publish_to_all(fleet: Fleet, partitions: list[int]) -> None:
    """Publish a message to each of these partitions, side by side."""
    addresses = [fleet.address(name) for name in fleet.names]
    async with connect(addresses) as client, asyncio.TaskGroup() as tasks:
        for partition in partitions:
            tasks.create_task(client.publish(MANY_TOPIC, b"after", partition=partition))


class Failover:
    """The cases, one after the other on the same nodes."""

    def __init__(self, report: Report, fleet: Fleet, tick: Tick, scratch: Path) -> None:
        self._report = report
        self._fleet = fleet
        self._tick = tick
        # One loop for all: gRPC does not outlive the loop it was first used on.
        self._do = asyncio.Runner(loop_factory=uvloop.new_event_loop).run
        self._scratch = scratch

    def run(self, cases: Sequence[str]) -> None:
        """Measure these cases."""
        self._do(make_topic(self._fleet, TOPIC))
        for case in cases:
            getattr(self, f"_{case}")()

    def _kill(self) -> None:
        self._kills(TOPIC, "failover", KILLS, KILL_BAR, "SIGKILL of the leader")

    def _pending(self) -> None:
        messages = self._fill()
        note = f"the same, {messages:,} pending"
        self._kills(PENDING_TOPIC, "failover_10m", PENDING_KILLS, PENDING_BAR, note)

    def _kills(self, topic: str, case: str, count: int, bar: Bar, note: str) -> None:
        found = []
        for _ in range(rounds_of(count)):
            self._tick(case)
            victim = self._fleet.leader(topic)
            kill = partial(self._fleet.kill, victim)
            found.append(self._do(acks_after(self._fleet, topic, kill)))
            self._fleet.start(victim)
            self._fleet.wait_whole()
        self._add(case, found, bar, note)

    def _stop(self) -> None:
        found = []
        for _ in range(rounds_of(STOPS)):
            self._tick("stop")
            victim = self._fleet.leader(TOPIC)
            stop = partial(self._fleet.stop, victim)
            try:
                found.append(self._do(acks_after(self._fleet, TOPIC, stop)))
            finally:
                self._fleet.go_on(victim)
            self._fleet.wait_whole()
        self._add(
            "failover_stop", found, STOP_BAR, f"SIGSTOP of the leader; the lease has {LEASE_S:g} s"
        )

    def _add(self, case: str, found: list[list[float]], bar: Bar, note: str) -> None:
        self._report.add(f"{case}_s", [acks[0] for acks in found], "s", bar=bar, note=note)
        self._report.add(f"{case}_all_acks_s", [acks[-1] for acks in found], "s")

    def _rolling(self) -> None:
        found = []
        for _ in range(rounds_of(ROLLS)):
            self._tick("rolling_worst_stall_ms")
            found.append(self._do(worst_stall_s(self._fleet, TOPIC)) * 1_000)
        note = f"SIGTERM and a start of {NODES} nodes, one after the other"
        self._report.add("rolling_worst_stall_ms", found, "ms", note=note)

    def _detect(self) -> None:
        """Let a member be killed, and stand still; beside the first, the same of Serf, in turn."""
        killed, stopped, theirs = [], [], []
        peer = serf if is_wanted("serf") else None
        for number in range(rounds_of(DETECTIONS)):
            self._tick("detect_s")
            victim = self._fleet.leader(TOPIC)
            killed.append(self._detected_s(self._fleet.kill, victim))
            self._fleet.start(victim)
            self._fleet.wait_whole()
            try:
                stopped.append(self._detected_s(self._fleet.stop, victim))
            finally:
                self._fleet.go_on(victim)
            self._fleet.wait_whole()
            try:
                if peer is not None:
                    theirs.append(peer.detect_s(self._scratch / f"serf{number}"))
            except Absent as reason:
                self._report.notes.append(f"Absent: serf, because {reason}.")
                peer = None
        note = "SIGKILL of a node, whose links break at once"
        self._report.add("detect_s", killed, "s", note=note)
        note = "SIGSTOP of a node: by gossip alone, preset local"
        self._report.add("detect_stop_s", stopped, "s", note=note)
        if peer is not None:
            note = "SIGKILL of an agent, by the logs of the others; profile local"
            self._report.peers.append(Result("serf_detect_s", theirs, "s", note=note))
            compare(self._report, "detect_s", {"serf": "serf_detect_s"}, name="detect")

    def _detected_s(self, hurt: Callable[[str], None], victim: str) -> float:
        begun = time.perf_counter()
        hurt(victim)
        wait_until(partial(self._is_known_dead, victim), f"the others know that {victim} is gone")
        return time.perf_counter() - begun

    def _is_known_dead(self, name: str) -> bool:
        return not {"alive", "suspect"} & set(self._fleet.states_of(name))

    def _gossip(self) -> None:
        self._tick("gossip_idle_bytes_s")
        before, begun = self._fleet.gossip_bytes(), time.perf_counter()
        time.sleep(1 if is_smoke() else IDLE_S)
        after, wall = self._fleet.gossip_bytes(), time.perf_counter() - begun
        most = max(after[name] - before[name] for name in after) / wall
        note = f"sent by UDP, the most of {NODES} nodes; preset local"
        self._report.add("gossip_idle_bytes_s", [most], "B/s", note=note)

    def _follower(self) -> None:
        """Compare latencies, in turns, with a follower that goes and one that stands still."""
        quiet, stopped = [], []
        for _ in range(rounds_of(P99_ROUNDS)):
            self._tick("follower_p99_ms")
            leader = self._fleet.leader(TOPIC)
            follower = next(name for name in self._fleet.names if name != leader)
            quiet.append(self._do(p99_ms(self._fleet.address(leader), TOPIC)))
            self._fleet.stop(follower)
            try:
                stopped.append(self._do(p99_ms(self._fleet.address(leader), TOPIC)))
            finally:
                self._fleet.go_on(follower)
            self._fleet.wait_whole()
        self._report.add("quiet_p99_ms", quiet, "ms", note=f"{RATE:,} a second")
        self._report.add("follower_stopped_p99_ms", stopped, "ms")
        shares = [b / a for a, b in zip(quiet, stopped, strict=True)]
        self._report.add("follower_stopped_share", shares, "of quiet", bar=P99_BAR)

    def _many(self) -> None:
        partitions, groups = scaled(PARTITIONS, least=4), scaled(GROUPS, least=2)
        self._tick("many")
        begun = time.perf_counter()
        self._do(make_topic(self._fleet, MANY_TOPIC, partitions))
        self._report.add("many_made_s", [time.perf_counter() - begun], "s")
        self._do(make_topic(self._fleet, SMALL_TOPIC))
        self._do(make_groups(self._fleet, SMALL_TOPIC, groups))
        self._fleet.wait_whole()
        self._idle(f"{partitions:,} partitions, {groups:,} groups")
        found = []
        for _ in range(rounds_of(MANY_KILLS)):
            self._tick("many_failover")
            victim = self._fleet.leader(TOPIC)
            parts = self._fleet.partitions()
            its = [
                p["partition"] for p in parts if (p["topic"], p["leader"]) == (MANY_TOPIC, victim)
            ]
            begun = time.perf_counter()
            self._fleet.kill(victim)
            self._do(publish_to_all(self._fleet, its))
            found.append(time.perf_counter() - begun)
            self._fleet.start(victim)
            self._fleet.wait_whole()
        note = "SIGKILL of a node, until each partition it led takes messages"
        self._report.add("many_failover_s", found, "s", bar=MANY_BAR, note=note)

    def _idle(self, what: str) -> None:
        self._tick("idle")
        groups = [self._fleet.server(name).group for name in self._fleet.names]
        time.sleep(1 if is_smoke() else IDLE_S)  # what was asked before is done with
        before, begun = list(map(cpu_seconds, groups)), time.perf_counter()
        time.sleep(1 if is_smoke() else IDLE_S)
        wall = time.perf_counter() - begun
        used = [(b - a) / wall * 100 for a, b in zip(before, map(cpu_seconds, groups), strict=True)]
        case = "idle_cpu_1000_partitions"
        self._report.add(case, [max(used)], "% of a core", bar=IDLE_BAR, note=what)

    def _fill(self) -> int:
        self._tick("pending")
        wanted = whole_batches(PENDING)
        messages = fitting(wanted, item_bytes=PENDING_BYTES, folder=self._scratch) // 1_000 * 1_000
        self._do(make_topic(self._fleet, PENDING_TOPIC))
        leader = self._fleet.server(self._fleet.leader(PENDING_TOPIC))
        work = {"topic": PENDING_TOPIC, "batch": 1_000, "messages": messages, "window": 8}
        watch = run_client("benchmarks.node.scheduling:fill", leader, **work)
        self._fleet.wait_whole()
        rate = f"{watch.rate / 1e3:.0f} K/s"
        self._report.notes.append(f"{messages:,} messages for later were published at {rate}.")
        return messages


CASES = {
    "follower": P99_ROUNDS,
    "gossip": 1,
    "stop": STOPS,
    "kill": KILLS,
    "detect": DETECTIONS,
    "rolling": ROLLS,
    "many": MANY_KILLS,
    "pending": PENDING_KILLS,
}
"""With how often each is done."""


def main() -> None:
    """Run everything."""
    # Not above: the processes this one starts would load it in vain.
    from benchmarks.display import progress

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failover", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--cases", default=",".join(CASES), help="only these (all: %(default)s)")
    options = options_of(parser)
    cases = options.cases.split(",")
    steps = sum(2 + rounds_of(CASES[case]) for case in cases)
    with scratch_folder() as scratch:
        report = Report("failover", facts(scratch, scale=scale()))
        with (
            progress("failover", steps=steps) as tick,
            running_fleet(scratch / "fleet") as fleet,
        ):
            report.machine["etcd"] = fleet.layout.version
            Failover(report, fleet, tick, scratch).run(cases)
    report.finish()
    if options.record:
        report.record("python -m benchmarks.failover --record")
    report.publish()


if __name__ == "__main__":
    main()
