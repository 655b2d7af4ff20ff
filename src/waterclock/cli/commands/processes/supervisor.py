"""Runs the processes of one machine, and is what they agree through.

The first Ctrl-C or SIGTERM stops all in good order, the second at once; SIGHUP has all read their
settings again. A process that ends by itself is started again, with its name and its folder: what
it acknowledged is there, and until it is ready its partitions are away. One that cannot be kept
running ends all, with what it said last. None outlives this process.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import waterclock
from waterclock.cli.commands.cluster.children import Child, end_at_once, hanging_up, signal_all
from waterclock.cli.commands.cluster.ready import until_formed
from waterclock.cli.commands.cluster.voice import COLOURS, Voice
from waterclock.cli.commands.processes.placement import begin_run, check_none_is_missed
from waterclock.cli.commands.processes.plan import (
    FOLDER,
    Process,
    SharedPorts,
    command,
    plan,
    shared_ports,
)
from waterclock.cli.commands.processes.ready import tell_ready
from waterclock.cli.commands.processes.restarts import Restarts
from waterclock.cli.output.terminal import print_json
from waterclock.model.errors import NodeFailed, WaterclockError
from waterclock.runtime import supervisor
from waterclock.runtime.lifecycle import calling_on_hangup, raise_single, stopping_on_signals
from waterclock.server.cluster.processes.journal import Journal
from waterclock.server.cluster.processes.service import CoordinatorService, coordinating
from waterclock.storage.folders.os_folder import OsFolder

if TYPE_CHECKING:
    from waterclock.model.config import Config


def run_processes(config: "Config", count: int, given: Sequence[str], *, as_json: bool) -> None:
    """Run so many processes until they are stopped; `given` are options of each."""
    import uvloop

    from waterclock.security.folder import folder_in_use

    secured = folder_in_use(config)
    secure = None if secured is None else secured.path.absolute()
    with ExitStack() as held:
        folder = OsFolder(Path(config.node.data_folder).absolute() / FOLDER)
        journal = Journal(folder, now_ms=time.monotonic_ns() // 1_000_000)
        held.callback(journal.close)
        check_none_is_missed(journal.store, config.cluster.name, count)
        moment = journal.store.moment
        begin_run(journal.store, config.cluster.name, count)
        journal.save(journal.store.changes_since(moment))
        ports = held.enter_context(shared_ports(config))
        processes = plan(config, count, held)
        children = [
            ProcessChild(each, COLOURS[index % len(COLOURS)])
            for index, each in enumerate(processes)
        ]
        running = ProcessGroup(config, children, ports, given, secure, as_json=as_json)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(running.run(journal))


class ProcessChild(Child):
    """One of the processes, and how often it may be started again."""

    def __init__(self, process: Process, colour: str) -> None:
        super().__init__(process.name, colour)
        self.process = process
        self.restarts = Restarts()

    @property
    def ready_s(self) -> float:
        """For how long it was ready, 0 if it never was."""
        return 0.0 if self.ready_at is None else time.monotonic() - self.ready_at


class ProcessGroup:
    """All processes, and a person or a program that is told of them."""

    def __init__(
        self,
        config: "Config",
        children: Sequence[ProcessChild],
        ports: SharedPorts,
        given: Sequence[str],
        secure: Path | None,
        *,
        as_json: bool,
    ) -> None:
        self._config = config
        self._children = children
        self._ports = ports
        self._given = given
        self._folder = Path(config.node.data_folder).absolute()
        self._secure = secure
        self._as_json = as_json
        self._voice = Voice(as_json=as_json)
        self._is_first = asyncio.Event()
        """All have been ready once, or none of that is to be waited for."""
        self._ending = asyncio.Event()
        self._stopping_at: float | None = None
        self._failure = ""
        """Why those that were started are ended again."""

    async def run(self, journal: Journal) -> None:
        """Start all; return when all have ended. Raise NodeFailed unless they were asked to."""
        with (
            stopping_on_signals(self._stop, stop_at_once=partial(end_at_once, self._children)),
            calling_on_hangup(hanging_up(self._children)),
        ):
            try:
                async with coordinating(journal) as service:
                    await self._run_all(service)
            except* WaterclockError as problems:
                signal_all(self._children, signal.SIGKILL)
                raise_single(problems)
        if self._failure:
            raise NodeFailed(self._failure)
        assert self._stopping_at is not None
        seconds = time.monotonic() - self._stopping_at
        self._voice.say(f"Stopped in {seconds:.1f} s; everything is on disk.", "green")

    async def _run_all(self, service: CoordinatorService) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._keep(each, service)) for each in self._children]
            telling = tasks.create_task(self._tell_when_ready())
            await asyncio.wait(running)
            telling.cancel()

    # One process

    async def _keep(self, child: ProcessChild, service: CoordinatorService) -> None:
        """Have a process run until all are to stop."""
        while not self._is_ending:
            await self._follow(child, service)
            if self._is_ending:
                self._voice.say_of(child.name, child.colour, child.end_text())
                return
            if not child.facts:
                self._fail(f"{child.name} did not start: {child.error or f'it {child.end_text()}'}")
                return
            delay_s = child.restarts.ended(ready_s=child.ready_s)
            if delay_s is None:
                self._fail(f"{child.name} {child.end_text()}, as it did again and again")
                return
            when = f" in {delay_s:g} s" if delay_s else ""
            self._voice.warn(f"{child.name} {child.end_text()}; it is started again{when}")
            await self._pause(delay_s)

    async def _follow(self, child: ProcessChild, service: CoordinatorService) -> None:
        """Run a process, from its start to its end."""
        theirs = await service.connect()
        with theirs:
            words = command(
                child.process,
                [each.process for each in self._children],
                self._ports,
                self._given,
                self._secure,
                theirs.fileno(),
            )
            started = await child.start(words, descriptors=(theirs.fileno(),))
        if self._is_ending:  # a signal came meanwhile
            child.signal(signal.SIGTERM)
        assert started.stdout is not None
        async with asyncio.TaskGroup() as tasks:
            is_named = self._as_json and self._config.log.format == "text"
            tasks.create_task(child.pass_on_log(self._voice, is_named=is_named))
            if line := await started.stdout.readline():
                self._became_ready(child, json.loads(line))
                await started.stdout.read()
            await started.wait()

    def _became_ready(self, child: ProcessChild, facts: dict[str, Any]) -> None:
        is_back = bool(child.facts)
        child.became_ready(facts)
        if is_back:
            self._voice.warn(f"{child.name} is back, as process {facts['pid']}")
        else:
            self._voice.say_of(child.name, child.colour, "is ready")
        if all(each.facts for each in self._children):
            self._is_first.set()

    # All of them

    @property
    def _is_ending(self) -> bool:
        return self._stopping_at is not None or bool(self._failure)

    def _fail(self, why: str) -> None:
        """End all, since one cannot be kept running."""
        if not self._is_ending:
            self._failure = why
            self._ending.set()
            signal_all(self._children, signal.SIGTERM)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def _tell_when_ready(self) -> None:
        """Say where they are, once all of them know of each other."""
        await self._is_first.wait()
        facts = [child.facts for child in self._children]
        credential = None if self._secure is None else self._secure / "admin.credential"
        own = [str(each["own_http_address"]) for each in facts]
        is_formed = await until_formed(own, credential)
        supervisor.tell_ready()
        if self._as_json:
            shared = ("grpc_address", "grpc_port", "http_address", "http_port", "is_secure")
            print_json(
                {
                    "version": waterclock.__version__,
                    "pid": os.getpid(),
                    "is_formed": is_formed,
                    **{name: facts[0][name] for name in (*shared, "admin_credential")
                       if name in facts[0]},
                    "data_folder": str(self._folder),
                    "processes": facts,
                }
            )  # fmt: skip
            return
        if not is_formed:
            self._voice.warn("The processes run, but not all of them know of each other yet.")
        tell_ready(self._voice.out, self._config, facts)

    def _stop(self) -> None:
        if self._stopping_at is None:
            self._stopping_at = time.monotonic()
            self._ending.set()
            supervisor.tell_stopping()
            self._voice.say("\nStopping all processes. Ctrl-C again ends them at once.", "yellow")
        signal_all(self._children, signal.SIGTERM)
