"""Backups under load, and a node that is killed: what was acknowledged before is restored.

`make backup-chaos N=20 SEED=17` runs it. A round: a node under traffic is backed up again and again
into one folder, and killed at a random moment, perhaps in the middle of a backup. The last backup
that was finished is restored elsewhere, every log of it is checked, a node is started on it, and
judged by all that was answered before that backup began.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from tests.backup.plants import PLANTS
from tests.backup.traffic import GROUP, TOPIC, Traffic
from tests.backup.verdict import Judge, check_logs
from tests.integration.node_process import NodeProcess
from tests.kit.rounds import arguments, look_for, print_json, show_round, workplace
from tests.kit.verdict import Findings, Verdict
from waterclock.cli.commands.backups.backup import back_up
from waterclock.client.client import Client, connect
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import NotFound, WaterclockError
from waterclock.storage.backup.restore import Restoring
from waterclock.storage.backup.writer import BackupFolder

SETTINGS: dict[str, dict[str, Any]] = {
    # Small, so that a round seals many segments.
    "log": {"segment_bytes": 8 << 10, "preallocate_bytes": 4 << 10},
    "schedule": {"tick_ms": 50},
    "delivery": {"retry_delay_ms": 100, "retry_delay_ms_max": 200},
}
CLIENT = ClientSettings(delivery_timeout_ms=1_000, call_timeout_ms=5_000, close_timeout_ms=0)
TRIES = 3


@dataclass
class Round:
    """One round."""

    folder: Path
    seed: int
    plant: str | None = None
    verdict: Verdict = field(default_factory=Verdict)
    began: float | None = None
    """When the last backup began that was finished."""
    committed: dict[int, int] = field(default_factory=dict)
    """Where the group stood before it."""

    async def run(self) -> None:
        """Play it, and judge."""
        rng = Random(self.seed)
        traffic = await self._live(rng)
        assert self.began is not None
        data = self.folder / "restored" / "data"
        with Restoring(self.folder / "backup", data) as restoring:
            restoring.run(lambda count: None)
        check_logs(data, self.verdict)
        node = NodeProcess(self.folder / "restored", SETTINGS)
        try:
            await node.start()
            async with connect(node.address, CLIENT) as client:
                judge = Judge(client, traffic.journal, self.began, self.verdict)
                await judge.judge(self.committed)
        finally:
            await node.kill()
        for bug in node.bugs():
            self.verdict.findings.add("unforeseen in the log", bug)

    async def _live(self, rng: Random) -> Traffic:
        """Run a node under traffic, back it up, and kill it."""
        for name in ("first", "restored"):
            (self.folder / name).mkdir(parents=True)
        node = NodeProcess(self.folder / "first", SETTINGS, backup_plant=self.plant)
        try:
            await node.start()
            async with connect(node.address, CLIENT) as client:
                traffic = Traffic(client, rng)
                await traffic.prepare()
                async with asyncio.TaskGroup() as tasks:
                    running = traffic.start(tasks)
                    await traffic.published(rng.randrange(60, 200))
                    for _ in range(2):
                        await self._back_up(client)
                    running.append(tasks.create_task(self._back_up_again(client, rng)))
                    await asyncio.sleep(rng.uniform(0, 1))
                    await node.kill()
                    for task in running:
                        task.cancel()
        finally:
            await node.kill()
        for bug in node.bugs():
            self.verdict.findings.add("unforeseen in the log", bug)
        return traffic

    async def _back_up_again(self, client: Client, rng: Random) -> None:
        while True:
            await asyncio.sleep(rng.uniform(0, 0.2))
            try:
                await self._back_up(client)
            except WaterclockError:
                self.verdict.counts["backups cut short"] += 1
                return

    async def _back_up(self, client: Client) -> None:
        committed = await _committed(client)
        began = time.monotonic()
        with BackupFolder(self.folder / "backup") as folder:
            taken = await back_up(client, folder)
        self.began, self.committed = began, committed
        self.verdict.counts["backups"] += 1
        self.verdict.counts["segments copied"] += taken.copied
        self.verdict.counts["segments kept"] += len(taken.manifest.checksums) - taken.copied


async def _committed(client: Client) -> dict[int, int]:
    try:
        group = await client.groups.get(TOPIC, GROUP)
    except NotFound:
        return {}
    return {place.partition: place.committed for place in group.partitions}


def play(folder: Path, seed: int, plant: str | None = None) -> Verdict:
    """Play a round in a loop of its own."""
    this = Round(folder, seed, plant)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(this.run())
    return this.verdict


def main() -> int:
    """Play as many rounds as the command line says, or look for planted bugs."""
    parser = arguments(__doc__, PLANTS)
    said = parser.parse_args()
    with workplace(said) as (console, folder):
        if said.plant or said.plants:
            names = [said.plant] if said.plant else list(PLANTS)

            def planted(name: str, attempt: int) -> tuple[Findings, float]:
                begun = time.monotonic()
                found = play(folder / f"{name}-{attempt}", said.seed + attempt, name)
                return found.findings, time.monotonic() - begun

            found = look_for(PLANTS, names, planted, tries=TRIES, console=console)
            print_json(said, found)
            return sum(not each for each in found.values())
        verdicts = []
        for number in range(said.rounds):
            seed = said.seed + number
            begun = time.monotonic()
            verdicts.append(play(folder / f"round-{number}", seed))
            counts = json.dumps(dict(sorted(verdicts[-1].counts.items())))
            line = f"round {number + 1}, seed {seed}, {time.monotonic() - begun:.1f} s, {counts}"
            show_round(console, line, verdicts[-1].findings)
        print_json(said, [each.as_json() for each in verdicts])
        failed = sum(bool(each.findings) for each in verdicts)
        console.print(f"{len(verdicts) - failed} of {len(verdicts)} rounds kept every promise")
        return failed


if __name__ == "__main__":
    sys.exit(main())
