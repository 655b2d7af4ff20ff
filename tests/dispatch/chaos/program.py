"""A dispatcher or a worker of a round: the real one, and beside it a journal of what it accepted.

The journal is a file of JSON lines, written without a buffer, so that a kill loses nothing of it. A
worker adds the epoch and its name to each entry it writes; two signals make it die at the two worst
moments: with a write done and not acknowledged, and with everything done but the write.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from time import monotonic
from typing import Any

import uvloop

from tests.dispatch.chaos.planted import PLANTS
from waterclock.dispatch import DispatcherConfig, WorkerConfig, run_dispatcher, run_worker
from waterclock.dispatch.dispatcher import Dispatcher
from waterclock.dispatch.frames import Welcome
from waterclock.dispatch.links import LeaderLink
from waterclock.dispatch.sinks.redis import RedisSink
from waterclock.dispatch.sinks.sink import Writing
from waterclock.dispatch.worker.handlers import Delivery, PermanentError
from waterclock.dispatch.worker.worker import Worker

TELL_S = 0.1
DIE_BEFORE_WRITE = signal.SIGUSR1
DIE_AFTER_WRITE = signal.SIGUSR2
CRASHED = 9


class Journal:
    """What one process did."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str, **facts: Any) -> None:
        """Write it down, with the time on the clock that all processes share."""
        line = json.dumps({"at": monotonic(), "what": what, **facts})
        os.write(self._file, line.encode() + b"\n")

    def tell(self, program: Dispatcher | Worker) -> None:
        """Write down what it counted, now and then."""
        self.note("counts", epoch=program.epoch, **asdict(program.counts))
        asyncio.get_running_loop().call_later(TELL_S, self.tell, program)


def run(spec: dict[str, Any]) -> None:
    """Run what the fork server was asked for, until it ends."""
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 2)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s {spec['name']} %(message)s"
    )
    journal = Journal(spec["journal"])
    if spec["plant"]:
        PLANTS[spec["plant"]].put()
    config: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in spec["config"].items()
    }
    if spec["kind"] == "dispatcher":
        uvloop.run(run_dispatcher(DispatcherConfig(**config), on_ready=journal.tell))
        return
    observe(journal, spec["name"])
    handler = _handler(spec["slow_s"])
    uvloop.run(run_worker(WorkerConfig(**config), handler=handler, on_ready=journal.tell))


def _handler(slow_s: float) -> Any:
    async def handle(message: dict[str, Any], delivery: Delivery) -> dict[str, object]:
        match message.get("do"):
            case "slow":
                await asyncio.sleep(slow_s)
            case "fail":
                raise ValueError("this message fails wherever it goes")
            case "refuse":
                raise PermanentError("nobody can process this message")
            case "crash":
                os._exit(CRASHED)
            case _:
                await asyncio.sleep(0.002)
        return {"n": message["n"]}

    return handle


def observe(journal: Journal, name: str) -> None:
    """Let a worker write down what it accepts, name itself in what it writes, and die when told."""
    take, welcomed, write = Worker._take, Worker._welcomed, RedisSink.write
    deadly: set[int] = set()
    for number in (DIE_BEFORE_WRITE, DIE_AFTER_WRITE):
        signal.signal(number, lambda number, _: deadly.add(number))

    def taken(self: Worker, link: LeaderLink, *rest: Any) -> None:
        journal.note("accepted", epoch=link.epoch)
        take(self, link, *rest)

    def greeted(self: Worker, link: LeaderLink, welcome: Welcome) -> None:
        before = self.epoch
        welcomed(self, link, welcome)
        if self.epoch > before:
            journal.note("followed", epoch=self.epoch)

    async def written(self: RedisSink, writing: Writing) -> list[int]:
        if DIE_BEFORE_WRITE in deadly:
            journal.note("died", when="before its write", messages=len(writing.uuids))
            os._exit(CRASHED)
        facts = [b"epoch", b"%d" % writing.epoch, b"by", name.encode()]
        values = [[value[0] + len(facts), *value[1:], *facts] for value in writing.values]
        said = Writing(writing.epoch, writing.uuids, writing.births_ms, values)
        statuses = await write(self, said)
        if DIE_AFTER_WRITE in deadly:
            journal.note("died", when="after its write", messages=len(writing.uuids))
            os._exit(CRASHED)
        return statuses

    Worker._take = taken  # type: ignore[method-assign, assignment]
    Worker._welcomed = greeted  # type: ignore[method-assign]
    RedisSink.write = written  # type: ignore[method-assign]
