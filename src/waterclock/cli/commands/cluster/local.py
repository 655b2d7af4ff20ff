"""`waterclock up --nodes N`: nodes of one cluster on this machine, each a process of its own.

The first Ctrl-C or SIGTERM stops all nodes in good order, the second at once; SIGHUP has all read
their settings again. A node that ends by itself is told in one line, and the others go on.
No node outlives this process: the kernel asks it to stop when this one is gone, however it went.
Topics need an etcd: one that is found on the path is run beside the nodes (`etcd.py`).
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import waterclock
from waterclock.cli.commands.cluster.children import Child, end_at_once, hanging_up, signal_all
from waterclock.cli.commands.cluster.etcd import (
    HOW_TO_GET,
    LocalEtcd,
    RunningEtcd,
    etcd_for,
    running_etcd,
)
from waterclock.cli.commands.cluster.plan import LocalNode, command, plan
from waterclock.cli.commands.cluster.ready import tell_ready, until_formed
from waterclock.cli.commands.cluster.voice import COLOURS, Voice
from waterclock.cli.output.terminal import counted, print_json
from waterclock.model.errors import NodeFailed
from waterclock.runtime import supervisor
from waterclock.runtime.lifecycle import calling_on_hangup, stopping_on_signals

if TYPE_CHECKING:
    from waterclock.model.config import Config


def run_local_cluster(
    config: "Config",
    count: int,
    given: Sequence[str],
    *,
    has_topics: bool | None,
    as_json: bool,
) -> None:
    """Run a cluster of so many nodes until it is stopped; `given` are options of every node.

    If nobody said whether it has topics, it has if there is an etcd.
    """
    import uvloop

    from waterclock.security.folder import folder_in_use

    secured = folder_in_use(config)
    secure = None if secured is None else secured.path.absolute()
    with ExitStack() as held:
        nodes = plan(config, count, held)
        etcd = etcd_for(config, held, is_wanted=has_topics)
        endpoint = "" if etcd is None else etcd.endpoint
        children = [
            NodeChild(
                node, command(node, nodes, given, secure, endpoint), COLOURS[index % len(COLOURS)]
            )
            for index, node in enumerate(nodes)
        ]
        cluster = LocalCluster(config, children, secure, etcd, as_json=as_json)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(cluster.run())


class NodeChild(Child):
    """One node, as a process."""

    def __init__(self, node: LocalNode, words: Sequence[str], colour: str) -> None:
        super().__init__(node.name, colour)
        self.node = node
        self.words = words
        self.has_begun = asyncio.Event()
        """It is ready, or has ended."""


class LocalCluster:
    """Some nodes, and a person or a program that is told of them."""

    def __init__(
        self,
        config: "Config",
        children: Sequence[NodeChild],
        secure: Path | None,
        etcd: LocalEtcd | None = None,
        *,
        as_json: bool,
    ) -> None:
        self._config = config
        self._children = children
        self._folder = Path(config.node.data_folder).absolute()
        self._secure = secure
        self._etcd = etcd
        self._as_json = as_json
        self._voice = Voice(as_json=as_json)
        self._out = self._voice.out
        self._began = time.monotonic()
        self._stopping_at: float | None = None
        self._failure = ""
        """Why the nodes that were started are ended again."""
        self._forming: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Start all; return when all have ended. Raise NodeFailed unless they were asked to."""
        count = counted(len(self._children), "node")
        where = f"starting {count} in {self._folder}"
        if self._out.is_terminal:
            self._voice.say(f"Waterclock {waterclock.__version__}: {where}", "bold")
        with (
            stopping_on_signals(self._stop, stop_at_once=partial(end_at_once, self._children)),
            calling_on_hangup(hanging_up(self._children)),
        ):
            async with running_etcd(self._etcd, self._voice.warn) as etcd:
                if self._stopping_at is None:
                    await self._run_nodes(etcd)
        if self._failure or self._stopping_at is None:
            raise NodeFailed(self._failure or "no node is left")
        self._voice.say(f"Stopped in {time.monotonic() - self._stopping_at:.1f} s.", "green")

    async def _run_nodes(self, etcd: RunningEtcd | None) -> None:
        async with asyncio.TaskGroup() as tasks:
            for child in self._children:
                tasks.create_task(self._follow(child))
            for child in self._children:
                await child.has_begun.wait()
            if self._is_whole:
                self._forming = tasks.create_task(self._form(etcd))

    @property
    def _is_whole(self) -> bool:
        """All nodes run, and nobody has asked to stop them."""
        is_asked = self._stopping_at is not None or self._failure
        return not is_asked and all(child.facts for child in self._children)

    # One node

    async def _follow(self, child: NodeChild) -> None:
        """Run a node, from its start to its end."""
        process = await child.start(child.words)
        if self._stopping_at is not None or self._failure:  # that was said meanwhile
            child.signal(signal.SIGTERM)
        assert process.stdout is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child.pass_on_log(self._voice))
            if line := await process.stdout.readline():
                child.became_ready({**json.loads(line), "gossip_address": child.node.gossip})
                child.has_begun.set()
                seconds = time.monotonic() - self._began
                self._voice.say_of(child.name, child.colour, f"is ready, after {seconds:.1f} s")
                await process.stdout.read()
            await process.wait()
        self._ended(child)

    def _ended(self, child: NodeChild) -> None:
        """Tell how a node ended; one that could not start takes the others with it."""
        is_first = not child.has_begun.is_set()
        child.has_begun.set()
        if self._stopping_at is not None or self._failure:
            self._voice.say_of(child.name, child.colour, child.end_text())
        elif is_first:
            why = child.error or f"it {child.end_text()}"
            self._failure = f"{child.name} did not start: {why}"
            signal_all(self._children, signal.SIGTERM)
        else:
            if self._forming is not None:
                self._forming.cancel()
            running = [each for each in self._children if each.is_running]
            names = ", ".join(each.name for each in running)
            rest = f"; {names} {'goes' if len(running) == 1 else 'go'} on" if running else ""
            self._voice.warn(f"{child.name} {child.end_text()}{rest}")

    # All of them

    async def _form(self, etcd: RunningEtcd | None) -> None:
        """Wait until every node knows of all, and say where they are."""
        facts = [child.facts for child in self._children]
        credential = None if self._secure is None else self._secure / "admin.credential"
        is_formed = await until_formed([str(each["http_address"]) for each in facts], credential)
        supervisor.tell_ready()
        if self._as_json:
            print_json(
                {
                    "cluster": self._config.cluster.name,
                    "version": waterclock.__version__,
                    "pid": os.getpid(),
                    "is_formed": is_formed,
                    "etcd": None if etcd is None else etcd.facts(),
                    "nodes": facts,
                }
            )
            return
        if is_formed:
            head = f"{len(facts)} nodes are one cluster, {self._config.cluster.name}"
            if self._out.is_terminal:
                self._voice.say("", "")
            self._voice.say(f"Waterclock {waterclock.__version__}: {head}", "bold")
        else:
            self._voice.warn("The nodes run, but not all of them know of each other yet.")
        tell_ready(self._out, facts, None if etcd is None else etcd.facts())
        if etcd is None and not self._config.cluster.etcd:
            self._voice.say(f"Streams only: topics need etcd, and {HOW_TO_GET}.", "yellow")

    def _stop(self) -> None:
        if self._stopping_at is None:
            self._stopping_at = time.monotonic()
            supervisor.tell_stopping()
            self._voice.say("\nStopping all nodes. Ctrl-C again ends them at once.", "yellow")
        if self._forming is not None:
            self._forming.cancel()
        signal_all(self._children, signal.SIGTERM)
