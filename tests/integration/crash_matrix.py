"""The crash matrix: a node is killed again and again under load, and nothing may come of it.

`make crash N=50 SEED=17` runs it; the report has every counter, and the exit code says whether
anything was found. The seed fixes what is chosen, not how the two processes interleave: the same
seed begins the same way and is not bound to end so.

A round is some seconds of load and an end of the node:

    kill        SIGKILL at a random moment
    stop        SIGTERM: it must end by itself, in good order, with code 0
    cut stop    SIGTERM, and SIGKILL while it is at it
    cut start   SIGKILL; then once or twice SIGKILL again while it starts and recovers
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from tests.integration.history import History
from tests.integration.link import Link
from tests.integration.members import Members
from tests.integration.node_process import NodeProcess
from tests.integration.stint import now_ms
from tests.integration.traffic import DUE_AHEAD_MS, Traffic
from tests.integration.verdict import Verdict
from tests.kit.node import NodeEnded
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import scheduler_pb2 as sp

TOPIC = "work"
PARTITIONS = 3
GROUPS = ("left", "right")
MEMBERS_EACH = 3
LEASE_MS = 1_500
RETRIES_MAX = 2

SETTINGS: dict[str, dict[str, Any]] = {
    # Small, so that a run rolls segments, saves timers and saves side-cars many times.
    "log": {"segment_bytes": 256 << 10, "preallocate_bytes": 64 << 10},
    "schedule": {"tick_ms": 50, "checkpoint_ms": 1_000},
    "delivery": {
        "ack_timeout_ms": LEASE_MS,
        "max_retries": RETRIES_MAX,
        "retry_delay_ms": 100,
        "retry_delay_ms_max": 400,
    },
    "groups": {"session_timeout_ms": 2_500, "revoke_grace_ms": 800},
    "server": {"drain_ms": 1_500},
    "topics": {"partitions": PARTITIONS},
}
ENDS = {"kill": 60, "stop": 14, "cut stop": 10, "cut start": 16}


@dataclass
class Matrix:
    """One run."""

    folder: Path
    seed: int
    rounds: int
    round_s_max: float = 5.0
    plant: str | None = None
    ends: dict[str, int] = field(default_factory=lambda: dict(ENDS))
    quiet_s_max: float = 90.0
    """How long all work may take to be done once nobody adds to it."""

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.history = History(GROUPS)
        self.node = NodeProcess(self.folder, SETTINGS, plant=self.plant)
        self.link = Link(self.history.findings)
        self.took_s = self.quiet_s = 0.0
        self.begun = 0.0
        self.traffic = Traffic(
            self.link,
            self.history,
            self.rng,
            topic=TOPIC,
            partitions=PARTITIONS,
            run=f"{self.seed}",
        )
        self.members = Members(self.link, self.history, self.rng, topic=TOPIC, lease_ms=LEASE_MS)

    async def run(self) -> None:
        """Run all rounds, let it drain, and judge."""
        self.begun = time.monotonic()
        try:
            await self._start()
            async with asyncio.TaskGroup() as tasks:
                self.traffic.start(tasks)
                self.members.start(tasks, MEMBERS_EACH)
                for _ in range(self.rounds):
                    await self._round()
                self.traffic.end()
                self.members.is_good = True
                await self._quiet()
                self.members.end()
            await Verdict(self.history, retries_max=RETRIES_MAX).judge(
                self.link.broker, TOPIC, PARTITIONS, now_ms=now_ms()
            )
            await self._stop()
        finally:
            await self.link.close()
            await self.node.kill()
        for bug in self.node.bugs():
            self.history.findings.add("unforeseen in the log", bug)
        self.took_s = time.monotonic() - self.begun

    # Rounds

    async def _start(self) -> None:
        self.history.born(await self.node.start())
        await self.link.open(self.node.address)

    async def _round(self) -> None:
        rng, history = self.rng, self.history
        end = rng.choices([*self.ends], [*self.ends.values()])[0]
        await asyncio.sleep(rng.uniform(0.2, self.round_s_max))
        if not self.node.is_running:
            history.findings.add("node died", self.node.last_words())
        history.counts[f"rounds: {end}"] += 1
        if end == "stop":
            await self._stop()
        elif end == "cut stop":
            history.run.stop_ms = now_ms()
            self.node.terminate()
            await asyncio.sleep(rng.uniform(0, 0.4))
            await self._kill()
        else:
            await self._kill()
        for _ in range(rng.randrange(1, 3) if end == "cut start" else 0):
            self.node.spawn()
            # Most of a start is Python's own; what the node does comes last.
            await asyncio.sleep(history.run.ready_s * rng.uniform(0.6, 1.05))
            await self.node.kill()
        await self._start()

    async def _kill(self) -> None:
        run = self.history.run
        await self.node.kill()
        run.is_killed, run.ended_ms = True, now_ms()
        await self.link.close()

    async def _stop(self) -> None:
        run = self.history.run
        run.stop_ms = now_ms()
        self.node.terminate()
        try:
            code = await self.node.ended()
        except TimeoutError:
            self.history.findings.add("did not stop", self.node.last_words())
            await self.node.kill()
            run.is_killed, code = True, 0
        if code:
            self.history.findings.add("did not stop", f"code {code}: {self.node.last_words()}")
        run.ended_ms = now_ms()
        await self.link.close()

    # The end

    async def _quiet(self) -> None:
        """Wait until nothing is pending and every group is done with everything."""
        await asyncio.sleep(DUE_AHEAD_MS / 1_000)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self.quiet_s_max):
                await self._all_done()
                # What has fired is pending no more, and while it is being flushed nobody lags.
                await self.traffic.settle()
                await self._all_done()
        except TimeoutError:
            self.history.findings.add("never done", str(await self._open_work()))
        self.quiet_s = time.monotonic() - begun

    async def _all_done(self) -> None:
        while await self._open_work():  # noqa: ASYNC110  nobody tells us
            await asyncio.sleep(0.25)

    async def _open_work(self) -> list[str]:
        if not self.node.is_running:
            raise NodeEnded(self.node.last_words())
        counted = await self.link.scheduler.CountScheduled(sp.CountScheduledRequest(topic=TOPIC))
        found = [f"{counted.total} pending"] if counted.total else []
        for name in GROUPS:
            group = await self.link.admin.GetGroup(ap.GetGroupRequest(topic=TOPIC, group=name))
            found += [
                f"{name}/{place.partition}: lag {place.lag} of {place.end_offset}, {place.unacked} "
                f"held by {place.member or 'nobody'} of {len(group.members)}, {place.waiting} wait"
                for place in group.partitions
                if place.lag
            ]
        return found

    # The report

    def report(self, console: Console) -> None:
        """Tell everything that was counted."""
        history = self.history
        ready = sorted(run.ready_s for run in history.runs)
        facts: list[tuple[str, object]] = [
            ("seed", self.seed),
            ("rounds", self.rounds),
            ("took", f"{self.took_s:.0f} s"),
            *sorted((n, c) for n, c in history.counts.items() if n.startswith("rounds:")),
            ("quiet after", f"{self.quiet_s:.1f} s"),
            ("runs of the node", len(history.runs)),
            ("start, median", f"{ready[len(ready) // 2]:.2f} s"),
            ("start, slowest", f"{ready[-1]:.2f} s"),
            *sorted((n, c) for n, c in history.counts.items() if not n.startswith("rounds:")),
        ]
        for name, group in history.groups.items():
            facts += [(f"delivered to {name}", group.deliveries)]
            facts += [(f"messages seen by {name}", len(group.held))]
        table = Table(title="Crash matrix", show_header=False)
        for name, value in facts:
            table.add_row(name, str(value))
        table.add_section()
        for cause, count in sorted(history.repeats.items()):
            table.add_row(f"delivered again: {cause}", str(count))
        table.add_section()
        for kind in FORBIDDEN:
            table.add_row(kind, str(history.findings[kind]), style="bold")
        console.print(table)
        if history.findings:
            console.print(str(history.findings), markup=False, soft_wrap=True)


FORBIDDEN = (
    "lost publish",
    "lost delivery",
    "lost cancel",
    "passed over",
    "not fired",
    "never done",
    "early",
    "fired early",
    "after cancel",
    "after expiry",
    "unasked cancel",
    "out of order",
    "offset reused",
    "twice in the log",
    "torn log",
    "wrong content",
    "unpublished",
    "unexplained repeat",
    "dead letters",
    "strange status",
    "node died",
    "did not stop",
    "unforeseen in the log",
)
"""Of each of these there must be none."""


def run_matrix(matrix: Matrix) -> None:
    """Run it in a loop of its own; a node that will not start is a finding too."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(matrix.run())
    except* NodeEnded as problems:
        for error in problems.exceptions:
            matrix.history.findings.add("node died", str(error))


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--plant", help="a bug on purpose: see plants.py")
    parser.add_argument("--round-s-max", type=float, default=5.0)
    parser.add_argument("--keep", action="store_true", help="leave the data of a failed run")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="waterclock-crash-"))
    matrix = Matrix(folder, options.seed, options.rounds, options.round_s_max, options.plant)
    run_matrix(matrix)
    console = Console()
    matrix.report(console)
    if matrix.history.findings and options.keep:
        console.print(f"its data and log are in {folder}")
    else:
        with suppress(OSError):
            shutil.rmtree(folder)
    return bool(matrix.history.findings)


if __name__ == "__main__":
    sys.exit(main())
