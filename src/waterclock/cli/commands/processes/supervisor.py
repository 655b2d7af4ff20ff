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
from asyncio.subprocess import PIPE
from asyncio.subprocess import Process as Started
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import waterclock
from waterclock.cli.commands.cluster.processes import EXIT_AT_ONCE, lines_of, start_process
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
from waterclock.cli.output.terminal import one_line, print_json
from waterclock.model.errors import NodeFailed, WaterclockError
from waterclock.runtime import supervisor
from waterclock.runtime.lifecycle import calling_on_hangup, raise_single, stopping_on_signals
from waterclock.server.cluster.processes.journal import Journal
from waterclock.server.cluster.processes.service import CoordinatorService, coordinating
from waterclock.storage.folders.os_folder import OsFolder

if TYPE_CHECKING:
    from waterclock.model.config import Config

EXIT_HUNG_UP: Final = 128 + signal.SIGHUP
_ERROR: Final = "error: "


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
        processes = plan(config, count)
        children = [
            Child(each, COLOURS[index % len(COLOURS)]) for index, each in enumerate(processes)
        ]
        running = ProcessGroup(config, children, ports, given, secure, as_json=as_json)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(running.run(journal))


class Child:
    """One process, however often it is started."""

    def __init__(self, process: Process, colour: str) -> None:
        self.process = process
        self.colour = colour
        self.restarts = Restarts()
        self.facts: dict[str, Any] = {}
        """What it said of itself when it was ready, for the first time."""
        self.error = ""
        """Why it ended, as it says."""
        self.ready_at: float | None = None
        self.started: Started | None = None
        self._must_reload = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self.process.name

    @property
    def ready_s(self) -> float:
        """For how long it was ready, 0 if it never was."""
        return 0.0 if self.ready_at is None else time.monotonic() - self.ready_at

    async def start(self, words: Sequence[str], descriptor: int) -> Started:
        """Start it, with what it says to us."""
        self.error, self.ready_at, self._must_reload = "", None, False
        self.started = await start_process(
            words, stdout=PIPE, stderr=PIPE, descriptors=(descriptor,)
        )
        return self.started

    def became_ready(self, facts: dict[str, Any]) -> None:
        """Note what it says of itself."""
        self.facts, self.ready_at = facts, time.monotonic()
        if self._must_reload:
            self.reload()

    def reload(self) -> None:
        """Have it read its settings again; while it starts, SIGHUP could end it."""
        self._must_reload = self.ready_at is None
        if not self._must_reload:
            self.signal(signal.SIGHUP)

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.started is not None and self.started.returncode is None:
            with suppress(ProcessLookupError):
                self.started.send_signal(number)

    def end_text(self) -> str:
        """Return how it ended."""
        code = None if self.started is None else self.started.returncode
        assert code is not None
        if code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        if self.error:
            return f"ended: {self.error}"
        return f"ended with exit code {code}" if code else "has stopped"


class ProcessGroup:
    """All processes, and a person or a program that is told of them."""

    def __init__(
        self,
        config: "Config",
        children: Sequence[Child],
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
        self._has_terminal = os.isatty(0)
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
            stopping_on_signals(self._stop, stop_at_once=self._end_at_once),
            calling_on_hangup(self._hung_up),
        ):
            try:
                async with coordinating(journal) as service:
                    await self._run_all(service)
            except* WaterclockError as problems:
                self._signal_all(signal.SIGKILL)
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

    async def _keep(self, child: Child, service: CoordinatorService) -> None:
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

    async def _follow(self, child: Child, service: CoordinatorService) -> None:
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
            started = await child.start(words, theirs.fileno())
        if self._is_ending:  # a signal came meanwhile
            child.signal(signal.SIGTERM)
        assert started.stdout is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pass_on_log(child, started))
            if line := await started.stdout.readline():
                self._became_ready(child, json.loads(line))
                await started.stdout.read()
            await started.wait()

    def _became_ready(self, child: Child, facts: dict[str, Any]) -> None:
        is_back = bool(child.facts)
        child.became_ready(facts)
        if is_back:
            self._voice.warn(f"{child.name} is back, as process {facts['pid']}")
        else:
            self._voice.say_of(child.name, child.colour, "is ready")
        if all(each.facts for each in self._children):
            self._is_first.set()

    async def _pass_on_log(self, child: Child, started: Started) -> None:
        """Show what a process logs, with its name before each line; its last error is kept back."""
        assert started.stderr is not None
        is_named = self._as_json and self._config.log.format == "text"
        async for line in lines_of(started.stderr):
            text = line.decode(errors="backslashreplace").rstrip()
            if text.startswith(_ERROR):
                child.error = one_line(text.removeprefix(_ERROR))
            else:
                shown = f"{child.name}  {text}" if is_named else text
                self._voice.pass_on(child.name, child.colour, shown)

    # All of them

    @property
    def _is_ending(self) -> bool:
        return self._stopping_at is not None or bool(self._failure)

    def _fail(self, why: str) -> None:
        """End all, since one cannot be kept running."""
        if not self._is_ending:
            self._failure = why
            self._ending.set()
            self._signal_all(signal.SIGTERM)

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
        self._signal_all(signal.SIGTERM)

    def _end_at_once(self) -> None:
        self._signal_all(signal.SIGKILL)
        os._exit(EXIT_AT_ONCE)

    def _hung_up(self) -> None:
        if self._has_terminal and not os.isatty(0):  # the window was closed
            self._signal_all(signal.SIGTERM)
            os._exit(EXIT_HUNG_UP)
        supervisor.tell_reloading()
        for child in self._children:
            child.reload()
        supervisor.tell_ready()

    def _signal_all(self, number: int) -> None:
        for child in self._children:
            child.signal(number)
