"""Runs the demo: devices send, processes die and come back, and in the end all is counted."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from demos.dispatch import chaos
from demos.dispatch.outcome import Outcome
from demos.dispatch.processes import Names, OwnRedis, Processes, ProcessHandle
from demos.dispatch.readings import is_spoiled, reading
from demos.dispatch.snapshot import EVENTS_SHOWN, ProcessRow, Rates, Snapshot
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.keys import Keys, beside

SEND_S = 0.01
SENT_TOGETHER_MAX = 500
SNAPSHOT_S = 0.2
LOOK_S = 0.01
STALL_S_MAX = 15.0
"""If nothing more comes for so long, nothing will."""
PAGE = 5_000


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What is to be shown."""

    seconds: float
    rate: int
    source_kind: str
    workers: int
    victims: tuple[str, ...]
    every_s: float
    seed: int
    redis: str | None = None


OnSnapshot = Callable[[Snapshot], None]


async def run(options: DemoOptions, folder: Path, on_snapshot: OnSnapshot) -> Outcome:
    """Run the demo, and return what came of it."""
    names = Names(f"waterclock-demo-{options.seed:x}", options.source_kind)
    async with AsyncExitStack() as stack:
        address = options.redis
        if address is None:
            address = (await stack.enter_async_context(OwnRedis(folder))).address
        client = RedisClient([address])
        stack.callback(client.close)
        await client.call(names.source, "PING")  # who mistyped --redis hears so at once
        processes = Processes(folder, redis=address, names=names, workers=options.workers)
        tasks = await stack.enter_async_context(_children(processes))
        demo = _Demo(options, names, processes, client, on_snapshot)
        await processes.start(tasks)
        outcome = await demo.run(tasks)
        await processes.stop()
        if options.redis is not None:
            await demo.clean()
        return outcome


@asynccontextmanager
async def _children(processes: Processes) -> AsyncIterator[asyncio.TaskGroup]:
    """Lend a task group; when it ends, however it does, no process is left."""
    async with asyncio.TaskGroup() as tasks:
        try:
            yield tasks
        finally:
            await processes.kill()


class _Demo:
    def __init__(
        self,
        options: DemoOptions,
        names: Names,
        processes: Processes,
        client: RedisClient,
        on_snapshot: OnSnapshot,
    ) -> None:
        self._options = options
        self._names = names
        self._processes = processes
        self._client = client
        self._on_snapshot = on_snapshot
        self._rng = Random(options.seed)
        is_stream = options.source_kind == "stream"
        self._dead = beside(names.source, "dead") if is_stream else Keys(names.prefix).dead
        self._sent = 0
        self._begun = 0
        """Messages that are sent, or on their way."""
        self._began = time.monotonic()
        self._rates = Rates()
        self._events: list[str] = []
        self._killed: Counter[str] = Counter()
        self._takeovers_s: list[float] = []
        self._epochs: set[int] = set()

    def _at_s(self) -> float:
        return time.monotonic() - self._began

    async def run(self, tasks: asyncio.TaskGroup) -> Outcome:
        """Send for so long, let everything come through, and count."""
        self._began = time.monotonic()
        watching = tasks.create_task(self._watch())
        kills = chaos.plan(
            self._options.victims, seconds=self._options.seconds, every_s=self._options.every_s,
            rng=self._rng,
        )  # fmt: skip
        killing = tasks.create_task(self._kill(kills, tasks))
        await self._send()
        sending_s = self._at_s()
        await killing  # the killed are back by then: none starts when all are stopped
        await self._settle()
        watching.cancel()
        return replace(await self._counted(), seconds=round(sending_s, 3))

    # Devices

    async def _send(self) -> None:
        while (at_s := self._at_s()) < self._options.seconds:
            due = int(at_s * self._options.rate) - self._sent
            while due > 0 and self._at_s() < self._options.seconds:
                count = min(due, SENT_TOGETHER_MAX)
                now_ms = int(time.time() * 1_000)
                numbers = range(self._sent, self._sent + count)
                self._begun += count
                bodies = [reading(number, self._rng, now_ms) for number in numbers]
                await self._client.run(self._names.source, *map(self._command, bodies))
                self._sent += count
                due -= count
            await asyncio.sleep(SEND_S)

    def _command(self, body: bytes) -> tuple[str | bytes, ...]:
        if self._options.source_kind == "stream":
            return ("XADD", self._names.source, "*", "data", body)
        return ("PUBLISH", self._names.source, body)

    # Chaos

    async def _kill(self, kills: list[chaos.Kill], tasks: asyncio.TaskGroup) -> None:
        reviving = []
        for kill in kills:
            await asyncio.sleep(max(0.0, kill.at_s - self._at_s()))
            is_leader = kill.victim == chaos.LEADER
            leader = self._processes.leader()
            running = [each for each in self._processes.workers if each.is_running]
            victim = leader if is_leader else (self._rng.choice(running) if running else None)
            if victim is None:
                continue  # nobody leads just now: the one before was killed too shortly ago
            killed_at_s, begun = self._at_s(), self._begun
            await victim.kill()
            self._killed[kill.victim] += 1
            self._note(f"{killed_at_s:5.1f} s  kill -9 {victim.name}, the {kill.victim}")
            if is_leader:
                await self._until_next(begun)
                took_s = self._at_s() - killed_at_s
                self._takeovers_s.append(round(took_s, 3))
                self._note(f"{self._at_s():5.1f} s  the next leader's first entry: {took_s:.2f} s")
            reviving.append(tasks.create_task(self._revive(victim, tasks)))
        await asyncio.gather(*reviving)

    async def _revive(self, process: ProcessHandle, tasks: asyncio.TaskGroup) -> None:
        await asyncio.sleep(chaos.REVIVE_S)
        await process.start(tasks)
        self._note(f"{self._at_s():5.1f} s  {process.name} is back")

    async def _until_next(self, begun: int) -> None:
        """Wait for an entry of a message that was begun when the old leader was gone."""
        deadline = time.monotonic() + STALL_S_MAX
        while time.monotonic() < deadline:
            output = self._names.output
            newest = await self._client.call(output, "XREVRANGE", output, "+", "-", "COUNT", 20)
            if any(_number(fields) >= begun for _, fields in newest):
                return
            await asyncio.sleep(LOOK_S)

    def _note(self, event: str) -> None:
        self._events.append(event)

    # Watching

    async def _watch(self) -> None:
        while True:
            self._on_snapshot(await self._snapshot())
            await asyncio.sleep(SNAPSHOT_S)

    async def _snapshot(self) -> Snapshot:
        written, dead = await self._lengths()
        at_s = self._at_s()
        sent_rate, written_rate = self._rates.of(at_s, self._sent, written)
        leader = self._processes.leader()
        status = leader.status if leader is not None else {}
        self._epochs.update(filter(None, [status.get("epoch")]))
        return Snapshot(
            at_s, self._sent, written, dead,
            queued=status.get("queued", 0), pending=status.get("pending", 0),
            redelivered=self._total("redelivered"), epoch=status.get("epoch", 0),
            processes=self._rows(leader), events=tuple(self._events[-EVENTS_SHOWN:]),
            sent_rate=sent_rate, written_rate=written_rate,
        )  # fmt: skip

    def _rows(self, leader: ProcessHandle | None) -> tuple[ProcessRow, ...]:
        processes = []
        for process in self._processes.dispatchers:
            state = "leads" if process is leader else "stands by"
            processes.append(_row(process, state, "acked"))
        return (*processes, *(_row(each, "works", "written") for each in self._processes.workers))

    def _total(self, name: str) -> int:
        return sum(process.total(name) for process in self._processes.dispatchers)

    async def _lengths(self) -> tuple[int, int]:
        written = await self._client.call(self._names.output, "XLEN", self._names.output)
        return written, await self._client.call(self._dead, "XLEN", self._dead)

    # The end

    async def _settle(self) -> None:
        """Wait until all that was sent has come, or nothing comes any more."""
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < STALL_S_MAX:
            written, dead = await self._lengths()
            if written + dead >= self._sent:
                return
            if written + dead != seen:
                seen, since = written + dead, time.monotonic()
            if self._options.source_kind == "pubsub" and seen + self._total("lost") >= self._sent:
                return
            await asyncio.sleep(SNAPSHOT_S)

    async def _counted(self) -> Outcome:
        seen: Counter[int] = Counter()
        last = "-"
        output = self._names.output
        while page := await self._client.call(output, "XRANGE", output, last, "+", "COUNT", PAGE):
            seen.update(_number(fields) for _, fields in page)
            last = f"({page[-1][0].decode()}"
        _, dead = await self._lengths()
        return Outcome(
            source_kind=self._options.source_kind, sent=self._sent, written=len(seen), dead=dead,
            spoiled=sum(map(is_spoiled, range(self._sent))), twice=seen.total() - len(seen),
            seconds=0, redelivered=self._total("redelivered"), announced_lost=self._total("lost"),
            gaps=self._total("gaps"), takeovers_s=self._takeovers_s, killed=dict(self._killed),
            epochs=len(self._epochs),
        )  # fmt: skip

    async def clean(self) -> None:
        """Delete all keys of the demo from a Redis that is somebody else's."""
        pattern, cursor = f"{{{self._names.prefix}}}*", b"0"
        while True:
            args = ("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
            cursor, keys = await self._client.call(self._names.source, *args)
            if keys:
                await self._client.call(self._names.source, "UNLINK", *keys)
            if cursor == b"0":
                return


def _row(process: ProcessHandle, state: str, count: str) -> ProcessRow:
    return ProcessRow(process.name, state if process.is_running else "killed", process.total(count))


def _number(fields: list[bytes]) -> int:
    return int(fields[fields.index(b"message_id") + 1])
