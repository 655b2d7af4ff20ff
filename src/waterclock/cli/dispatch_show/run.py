"""Plays the show: devices send, processes die and come back, and in the end all is counted."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from waterclock.cli.dispatch_show import chaos
from waterclock.cli.dispatch_show.outcome import Outcome
from waterclock.cli.dispatch_show.processes import Actor, Cast, Names, OwnRedis
from waterclock.cli.dispatch_show.readings import is_spoiled, reading
from waterclock.cli.dispatch_show.snapshot import EVENTS_SHOWN, Player, Rates, Scene
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.key_slots import beside
from waterclock.dispatch.redis.keys import Keys

SEND_S = 0.01
SENT_TOGETHER_MAX = 500
SCENE_S = 0.2
LOOK_S = 0.01
STALL_S_MAX = 15.0
"""If nothing more comes for so long, nothing will."""
PAGE = 5_000


@dataclass(frozen=True, slots=True)
class Play:
    """What is to be played."""

    seconds: float
    rate: int
    inlet: str
    workers: int
    victims: tuple[str, ...]
    every_s: float
    seed: int
    redis: str | None = None


OnScene = Callable[[Scene], None]


async def perform(play: Play, folder: Path, on_scene: OnScene) -> Outcome:
    """Play, and return what came of it."""
    names = Names(f"waterclock-demo-{play.seed:x}", play.inlet)
    async with AsyncExitStack() as stack:
        address = play.redis
        if address is None:
            address = (await stack.enter_async_context(OwnRedis(folder))).address
        client = RedisClient([address])
        stack.callback(client.close)
        await client.call(names.source, "PING")  # who mistyped --redis hears so at once
        cast = Cast(folder, redis=address, names=names, workers=play.workers)
        tasks = await stack.enter_async_context(_children(cast))
        show = _Show(play, names, cast, client, on_scene)
        await cast.start(tasks)
        outcome = await show.run(tasks)
        await cast.stop()
        if play.redis is not None:
            await show.clean()
        return outcome


@asynccontextmanager
async def _children(cast: Cast) -> AsyncIterator[asyncio.TaskGroup]:
    """Lend a task group; when it ends, however it does, no process is left."""
    async with asyncio.TaskGroup() as tasks:
        try:
            yield tasks
        finally:
            await cast.kill()


class _Show:
    def __init__(
        self, play: Play, names: Names, cast: Cast, client: RedisClient, on_scene: OnScene
    ) -> None:
        self._play = play
        self._names = names
        self._cast = cast
        self._client = client
        self._on_scene = on_scene
        self._rng = Random(play.seed)
        is_stream = play.inlet == "stream"
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
            self._play.victims, seconds=self._play.seconds, every_s=self._play.every_s,
            rng=self._rng,
        )  # fmt: skip
        killing = tasks.create_task(self._kill(kills, tasks))
        await self._send()
        sending_s = self._at_s()
        await killing  # who was killed is back by then: nobody comes when all are told to go
        await self._settle()
        watching.cancel()
        return replace(await self._counted(), seconds=round(sending_s, 3))

    # Devices

    async def _send(self) -> None:
        while (at_s := self._at_s()) < self._play.seconds:
            due = int(at_s * self._play.rate) - self._sent
            while due > 0 and self._at_s() < self._play.seconds:
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
        if self._play.inlet == "stream":
            return ("XADD", self._names.source, "*", "data", body)
        return ("PUBLISH", self._names.source, body)

    # Chaos

    async def _kill(self, kills: list[chaos.Kill], tasks: asyncio.TaskGroup) -> None:
        reviving = []
        for kill in kills:
            await asyncio.sleep(max(0.0, kill.at_s - self._at_s()))
            is_leader = kill.victim == chaos.LEADER
            leader = self._cast.leader()
            running = [each for each in self._cast.workers if each.is_running]
            victim = leader if is_leader else (self._rng.choice(running) if running else None)
            if victim is None:
                continue  # nobody leads just now: the one before was killed too shortly ago
            killed_at_s, begun = self._at_s(), self._begun
            await victim.kill()
            self._killed[kill.victim] += 1
            self._tell(f"{killed_at_s:5.1f} s  kill -9 {victim.name}, the {kill.victim}")
            if is_leader:
                await self._until_next(begun)
                took_s = self._at_s() - killed_at_s
                self._takeovers_s.append(round(took_s, 3))
                self._tell(f"{self._at_s():5.1f} s  the next leader's first entry: {took_s:.2f} s")
            reviving.append(tasks.create_task(self._revive(victim, tasks)))
        await asyncio.gather(*reviving)

    async def _revive(self, actor: Actor, tasks: asyncio.TaskGroup) -> None:
        await asyncio.sleep(chaos.REVIVE_S)
        await actor.start(tasks)
        self._tell(f"{self._at_s():5.1f} s  {actor.name} is back")

    async def _until_next(self, begun: int) -> None:
        """Wait for an entry of a message that was begun when the old leader was gone."""
        deadline = time.monotonic() + STALL_S_MAX
        while time.monotonic() < deadline:
            output = self._names.output
            newest = await self._client.call(output, "XREVRANGE", output, "+", "-", "COUNT", 20)
            if any(_number(fields) >= begun for _, fields in newest):
                return
            await asyncio.sleep(LOOK_S)

    def _tell(self, event: str) -> None:
        self._events.append(event)

    # Watching

    async def _watch(self) -> None:
        while True:
            self._on_scene(await self._scene())
            await asyncio.sleep(SCENE_S)

    async def _scene(self) -> Scene:
        written, dead = await self._lengths()
        at_s = self._at_s()
        sent_rate, written_rate = self._rates.of(at_s, self._sent, written)
        leader = self._cast.leader()
        told = leader.told if leader is not None else {}
        self._epochs.update(filter(None, [told.get("epoch")]))
        return Scene(
            at_s, self._sent, written, dead,
            queued=told.get("queued", 0), pending=told.get("pending", 0),
            redelivered=self._total("redelivered"), epoch=told.get("epoch", 0),
            players=self._players(leader), events=tuple(self._events[-EVENTS_SHOWN:]),
            sent_rate=sent_rate, written_rate=written_rate,
        )  # fmt: skip

    def _players(self, leader: Actor | None) -> tuple[Player, ...]:
        players = []
        for actor in self._cast.dispatchers:
            state = "leads" if actor is leader else "stands by"
            players.append(_player(actor, state, "acked"))
        return (*players, *(_player(each, "works", "written") for each in self._cast.workers))

    def _total(self, name: str) -> int:
        return sum(actor.total(name) for actor in self._cast.dispatchers)

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
            if self._play.inlet == "pubsub" and seen + self._total("lost") >= self._sent:
                return
            await asyncio.sleep(SCENE_S)

    async def _counted(self) -> Outcome:
        seen: Counter[int] = Counter()
        last = "-"
        output = self._names.output
        while page := await self._client.call(output, "XRANGE", output, last, "+", "COUNT", PAGE):
            seen.update(_number(fields) for _, fields in page)
            last = f"({page[-1][0].decode()}"
        _, dead = await self._lengths()
        return Outcome(
            inlet=self._play.inlet, sent=self._sent, written=len(seen), dead=dead,
            spoiled=sum(map(is_spoiled, range(self._sent))), twice=seen.total() - len(seen),
            seconds=0, redelivered=self._total("redelivered"), told_lost=self._total("lost"),
            gaps=self._total("gaps"), takeovers_s=self._takeovers_s, killed=dict(self._killed),
            epochs=len(self._epochs),
        )  # fmt: skip

    async def clean(self) -> None:
        """Delete all keys of the show from a Redis that is somebody else's."""
        pattern, cursor = f"{{{self._names.prefix}}}*", b"0"
        while True:
            words = ("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
            cursor, keys = await self._client.call(self._names.source, *words)
            if keys:
                await self._client.call(self._names.source, "UNLINK", *keys)
            if cursor == b"0":
                return


def _player(actor: Actor, state: str, count: str) -> Player:
    return Player(actor.name, state if actor.is_running else "killed", actor.total(count))


def _number(fields: list[bytes]) -> int:
    return int(fields[fields.index(b"message_id") + 1])
