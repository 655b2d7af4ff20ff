"""Nodes with a replicator each, in one loop: real logs, real links, one coordinator."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

from tests.cluster.replication.shell.live_coordinator import until
from tests.node.hosts import batch_of
from waterclock.cluster.coordinator.coordinator import Coordinator
from waterclock.cluster.coordinator.records import (
    Keys,
    NodeRecord,
    PartitionRecord,
    encode_record,
)
from waterclock.cluster.coordinator.requests import Put, Txn
from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.peer_link.frames import Hello
from waterclock.cluster.replication.copies import INSTALL
from waterclock.log.append import Appended
from waterclock.model.config import Config
from waterclock.model.errors import WaterclockError
from waterclock.model.ids import Offset
from waterclock.model.message import Acks, Message
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.opening import replica_host
from waterclock.runtime.clock import SystemClock
from waterclock.server.cluster.peers import Peers, PeerSecurity
from waterclock.server.cluster.replication.replicator import Replicator, ReplicatorSettings
from waterclock.storage.flush import BackgroundThreads
from waterclock.storage.local_log import stored_messages
from waterclock.storage.promises import open_promises
from waterclock.storage.rewrite import Wanted, rewrites

LOG_ID = b"l" * 16
NAMES = ("a", "b", "c")
LEASE_MS = 30_000
"""Longer than any loop stands still on a busy machine: nobody leads who was not told to."""
SHORT_LEASE_MS = 6_000
"""For tests that wait for its end; a loop was seen standing still for two seconds."""


class Node:
    """One node with one partition."""

    replicator: Replicator
    host: PartitionHost
    _task: asyncio.Task[None] | None = None

    def __init__(
        self,
        name: str,
        keys: Keys,
        folder: Path,
        coordinator: Coordinator,
        settings: ReplicatorSettings,
        *,
        level: int = 1,
    ) -> None:
        self.name = name
        self.level = level
        self.keys = keys
        self.folder = folder
        self.coordinator = coordinator
        self.settings = settings
        self.failures: list[WaterclockError] = []
        self.is_isolated = False
        self.removals = 0
        """How often files of a replica were removed: soon others may be there."""
        self.peers = Peers(
            Hello(name, "test", heartbeat_ms=200, silence_ms=5_000),
            PeerSecurity(),
            on_request=self._requested,
            on_up=lambda node: self.replicator.linked(node),
            on_down=lambda node, why: None,
            on_gone=lambda node: self.replicator.process_gone(node),
            on_moved=lambda node: self.replicator.linked(node),
            random=Random(name),
        )

    def _requested(
        self, node: str, channel: Channel, method: int, body: bytes, is_last: bool
    ) -> None:
        if self.is_isolated:
            channel.cancel("cut off")
        elif method == INSTALL:
            self.replicator.asked_for_segments(channel, body)
        else:
            self.replicator.requested(node, channel, body)

    def isolate(self) -> None:
        """Let no replica here hear from others, nor others from it."""
        self.is_isolated = True
        self.cut()

    def rejoin(self) -> None:
        """Let them speak again."""
        self.is_isolated = False
        self.cut()

    def cut(self) -> None:
        """Break all links; they are dialled again."""
        for link in [*self.peers._links.values(), *self.peers._strangers]:
            link.abort()

    def kill(self) -> None:
        """End the replicator as the end of its process would: no word more."""
        assert self._task is not None
        self._task.cancel()
        self.isolate()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        threads = BackgroundThreads()
        promises = open_promises(self.folder)
        async with AsyncExitStack() as stack:
            stack.callback(threads.stop)
            stack.callback(promises.close)
            await stack.enter_async_context(self.peers.listening("127.0.0.1", 0))
            host, port = self.peers.address
            record = NodeRecord(peer=f"{host}:{port}", disk=promises.disk_id, level=self.level)
            self.replicator = Replicator(
                self.name,
                record,
                coordinator=self.coordinator,
                keys=self.keys,
                peers=self.peers,
                promises=promises,
                settings=self.settings,
                clock=SystemClock(),
            )
            self.host = replica_host(
                "t",
                0,
                log_folder=self.folder / "log",
                timers_folder=self.folder / "timers",
                config=Config(),
                clock=SystemClock(),
                threads=threads,
                loop=asyncio.get_running_loop(),
                on_failed=self.failures.append,
                on_full=lambda error: None,
                log_id=LOG_ID,
            )
            removal = self.host.removal

            def remove() -> bool:
                is_removed = removal()
                self.removals += is_removed
                return is_removed

            self.host.removal = remove
            self.replicator.attach(self.host, LOG_ID)
            stack.callback(self.host.close)
            async with asyncio.TaskGroup() as tasks:
                self._task = tasks.create_task(self.replicator.run())
                yield self
                self._task.cancel()

    async def publish(self, text: str, acks: Acks = "quorum") -> Appended:
        return await self.host.publish(batch_of(Message(b"", message_id=text.encode())), acks=acks)

    @asynccontextmanager
    async def removing(self, other: "Node") -> AsyncIterator[None]:
        """Take another node's replica out of the set, and go on when its files are gone too.

        Nothing is placed meanwhile: a node that is put back at once may never hear it was out.
        """
        core, me = self.replicator.hosted[0].core, other.replicator.me
        placing, before = self.replicator.placing, other.removals
        assert core is not None

        def is_out() -> bool:
            if core.record is not None and me not in core.record.replicas:
                return True
            self.replicator.hosted[0].tell(core.remove(me, self.replicator.now_ms()))
            return False

        step_all, placing._step_all = placing._step_all, lambda: False  # type: ignore[method-assign]
        await until(is_out)
        yield
        await until(lambda: other.removals > before)
        placing._step_all = step_all  # type: ignore[method-assign]
        placing.look()

    def drop_below(self, end: int) -> None:
        """Have retention take all messages of the log as it is; the next ones are kept."""
        store = self.host.store
        now_ms = SystemClock().now_ms()
        store.roll(now_ms)
        for job in rewrites(store, Wanted(keep_from=Offset(end)), now_ms=now_ms):
            job.run()
            job.finish()

    def texts(self) -> list[str]:
        """What readers see here, by id; nothing while the log is opened anew."""
        if not self.host.is_open:
            return []
        store = self.host.store
        return [
            (message.message_id or b"").decode()
            for frame in store.frames(store.start)
            if frame.header.is_deliverable
            for _, message in stored_messages(frame, 0)
        ]


class Trio:
    """Three nodes that have a replica each, and perhaps others."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    async def leader(self, *, but: Node | None = None) -> Node:
        """Return who leads, once it does: the preferred one, to which any other would hand over
        soon, and take no publishes meanwhile; or, without that one, another."""
        found: list[Node] = []
        wanted = self.nodes[:1] if but is None else self.others(but)

        def is_led() -> bool:
            found[:] = [each for each in wanted if each.host.is_led]
            return bool(found)

        await until(is_led)
        return found[0]

    def others(self, node: Node) -> list[Node]:
        return [each for each in self.nodes if each is not node]


@asynccontextmanager
async def trio(
    folder: Path,
    client: Callable[[str], Coordinator],
    *,
    cluster: str = "c",
    others: tuple[str, ...] = (),
    replace_after_ms: int = 0,
    lease_ms: int = LEASE_MS,
    acks_all_ms: int = ReplicatorSettings().acks_all_ms,
) -> AsyncIterator[Trio]:
    """Run three nodes, and others that have nothing; make the record of their partition."""
    keys = Keys(cluster)
    settings = ReplicatorSettings(
        lease_ms=lease_ms, replace_after_ms=replace_after_ms, acks_all_ms=acks_all_ms
    )
    nodes = [Node(name, keys, folder / name, client(name), settings) for name in (*NAMES, *others)]
    async with AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(node.running())
        replicas = tuple(node.replicator.me for node in nodes[: len(NAMES)])
        record = PartitionRecord(epoch=0, state="vacant", replicas=replicas)
        put = Put(keys.partition(LOG_ID), encode_record(record))
        await client("maker").write(Txn(success=(put,)))
        yield Trio(nodes)
