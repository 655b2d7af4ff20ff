"""A node: one process, one loop, everything that runs in it.

    metadata ── topics ── partitions (log, fsyncs, timers)
                  ├── publisher, batcher          in
                  ├── groups, replays, snapshots   out
                  ├── pending, recurrences         time
                  ├── write_registry               who writes what, once
                  └── dead letters, log cleaner
    streams ── persister                           in-memory streams, and their store

A node is a context: inside, it runs; leaving it, all that was accepted is flushed, timers and
progress are saved. If its disk fails, it ends by itself with that error: nothing after a failed
fsync can be trusted, and a restart begins with what is proven.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import Context
from dataclasses import replace
from pathlib import Path

import waterclock
from waterclock.model.backup import STREAMS
from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.model.errors import (
    ForgedToken,
    StorageError,
    Unavailable,
    WaterclockError,
)
from waterclock.model.ids import Millis
from waterclock.model.sections import DedupConfig
from waterclock.model.views import NodeInfo, RequestLimits
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.disk_watch import DiskWatch
from waterclock.node.groups.cleaner import GroupCleaner
from waterclock.node.groups.groups import Groups
from waterclock.node.groups.shards import GROUPS_TOPIC, SETTINGS, GroupShards
from waterclock.node.history.recorder import Recorder
from waterclock.node.job_runs import JobRuns
from waterclock.node.log_cleaner import LogCleaner
from waterclock.node.metadata import LOG, Metadata, open_metadata
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.opening import replica_host
from waterclock.node.problems import (
    DISK_FAILED,
    DISK_FULL,
    PARTITION_CLOSED,
    PARTITION_DAMAGED,
    STARTING,
    STOPPING,
    STORE_AWAY,
    HealthProblem,
    problem_named,
)
from waterclock.node.publish.batcher import PublishBatcher
from waterclock.node.publish.publisher import Publisher
from waterclock.node.publish.write_registry import WriteRegistry
from waterclock.node.replay.replays import Replays
from waterclock.node.replay.snapshots import FOLDER, Snapshots
from waterclock.node.replicated_topics import ReplicatedTopics
from waterclock.node.replication import META, Replication
from waterclock.node.rights import RightsRecords
from waterclock.node.schedule.pending import PendingMessages
from waterclock.node.schedule.recurrences import Recurrences
from waterclock.node.streams.host import Ownership, SoleOwner, StreamHost
from waterclock.node.streams.origin import StreamsOrigin
from waterclock.node.streams.partitions import StreamPartitions
from waterclock.node.streams.persister import Persister
from waterclock.node.streams.replicated_store import ReplicatedStore
from waterclock.node.streams.store_poller import StorePoller
from waterclock.node.task_groups import task_group
from waterclock.node.topics import Topic, Topics
from waterclock.storage.flush import BackgroundThreads
from waterclock.storage.folders.aio import aio_at
from waterclock.storage.folders.data_folder import DataFolder
from waterclock.storage.folders.file_system import file_system_at
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.stores.base import Record, Stored, StreamStore
from waterclock.stores.log.store import LogStore
from waterclock.stores.opening import open_store
from waterclock.streams.ring import Item
from waterclock.streams.tokens import KEY_BYTES, Token, Tokens

TOKEN_KEY = "streams/token_key"
"""The record with the key of resume tokens."""
STORE_S_MAX = 5.0
"""How long the start waits for the store of streams."""

log = logging.getLogger(__name__)


def node_name(config: Config) -> str:
    """Return what a node is called."""
    return config.node.name or socket.gethostname()


class Node:
    """A running node. Make one with `running_node`."""

    is_joining = False
    """It has yet to join the other nodes of its cluster."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        replication: Replication | None = None,
        meta_log_id: bytes = b"",
    ) -> None:
        """Of several nodes, each has a `replication` and follows the same log of records."""
        self.config = config
        self._replication = replication
        self.clock = clock
        self.name = node_name(config)
        self.started_ms = clock.now_ms()
        self.is_serving = False
        """It takes requests: it has started, and is not stopping."""
        self._was_started = False
        path = Path(config.node.data_folder)
        self._tasks = tasks
        self._threads = BackgroundThreads(file_system=file_system_at(path), kernel=aio_at(path))
        self._running: set[asyncio.Task[None]] = set()
        self._schedulers: dict[PartitionHost, asyncio.Task[None]] = {}
        self._changed_ms = self.started_ms
        self._damaged_ms: dict[PartitionHost, Millis] = {}
        """When damage was first seen."""
        self.more_problems: list[Callable[[], list[HealthProblem]]] = []
        """Each tells what is wrong with something around the node."""
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._meta: PartitionHost | None = None
        self.metadata = self._open_records(path / "meta", meta_log_id)
        self.rights = RightsRecords(self.metadata, clock)
        self.disk = DiskWatch(DataFolder(path, "meta", "topics"), clock, self._fail)
        self.topics = self._make_topics(path / "topics")
        self.publisher = Publisher(self.topics, config.limits, clock)
        self.batcher = PublishBatcher(
            self.topics, config.limits, clock, linger_ms=config.server.linger_ms
        )
        self.pending = PendingMessages(self.topics, config.limits, clock)
        self.recurrences = Recurrences(
            self.metadata, self.publisher, self.pending, clock, tasks, config.limits
        )
        self.topics.while_deleting.append(self.recurrences.topic_deleting)
        self.dead_letters = DeadLetters(self.topics, self.metadata, clock)
        shards = None if replication is None else GroupShards(clock)
        self.groups = Groups(self.topics, self.metadata, self.dead_letters, config, clock, shards)
        folders = [path / FOLDER, *map(Path, config.node.snapshot_folders)]
        self.snapshots = Snapshots(self.topics, self.metadata, folders)
        self.replays = Replays(self.topics, self.snapshots, self.metadata, clock)
        self.write_registry = WriteRegistry(self.topics, self.metadata, clock)
        self.job_runs = JobRuns(self.metadata, clock)
        self._make_streams(path)
        self.group_cleaner = GroupCleaner(self.groups, config.groups, clock)
        self.log_cleaner = LogCleaner(self.topics, self.metadata, config, self.group_cleaner)
        self.recorder = Recorder(path, self.topics, self.groups, self.streams, self.disk, clock)

    def _make_topics(self, path: Path) -> Topics:
        return (Topics if self._replication is None else ReplicatedTopics)(
            path, self.metadata, config=self.config, clock=self.clock, threads=self._threads,
            tasks=self._tasks, on_failed=self._fail, on_full=self._note_full,
        )  # fmt: skip

    def _open_records(self, folder: Path, log_id: bytes) -> Metadata:
        if self._replication is None:
            return open_metadata(folder, self.clock, self._threads, self._fail, self._note_full)
        self._meta = self._followed_meta(folder, log_id)
        return Metadata(self._meta, self.clock)

    def _make_streams(self, path: Path) -> None:
        self.ownership: Ownership = SoleOwner()
        self.streams = StreamHost(self.config.streams, self.clock)
        self.stream_tokens: Tokens
        store = _store_of(self.config, path)
        self.replicated_streams: ReplicatedStore | None = None
        if self._replication is not None and self.config.streams.store == "log:":
            origin = StreamsOrigin(self.metadata, self.name, path / STREAMS)
            partitions = StreamPartitions(self.topics, self.clock)
            store = ReplicatedStore(partitions, origin, self._replication)
            self.replicated_streams = store
        self.persister = Persister(
            store,
            self.clock,
            self.spawn,
            self._stored,
            None if self.replicated_streams is not None else self._share_key,
            self._note_full,
        )
        self.store_poller = StorePoller(self.streams, self.persister)

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.topics!r}>"

    @property
    def has_failed(self) -> bool:
        """Its disk did, and it ends."""
        return self._failure.done()

    @property
    def is_ready(self) -> bool:
        """It does what everyone wants of it: no problem is blocking."""
        is_serving = self.is_serving and not self.is_joining
        is_sound = not self.has_failed and self.disk.shortage is None
        found = (problem for more in self.more_problems for problem in more())
        return is_serving and is_sound and not any(each.is_blocking for each in found)

    def view(self) -> NodeInfo:
        """Return who this is."""
        limits = self.config.limits
        return NodeInfo(
            name=self.name,
            version=waterclock.__version__,
            started_ms=self.started_ms,
            now_ms=self.clock.now_ms(),
            limits=RequestLimits(
                limits.message_bytes_max, limits.batch_bytes_max, limits.batch_messages_max
            ),
            auto_create=self.config.topics.auto_create,
        )

    def problems(self) -> list[HealthProblem]:
        """Return what is wrong, the worst first; empty if all is well."""
        now_ms = self.clock.now_ms()
        found = []
        if not self.is_serving:
            name = STOPPING if self._was_started else STARTING
            found.append(problem_named(name, f"the node is {name}", self._changed_ms))
        elif self.is_joining:
            found.append(problem_named(STARTING, "the node joins its cluster", self.started_ms))
        if self.has_failed:
            found.append(
                problem_named(DISK_FAILED, str(self._failure.exception()), self._changed_ms)
            )
        if self.disk.shortage is not None:
            found.append(problem_named(DISK_FULL, *self.disk.shortage))
        for more in self.more_problems:
            found += more()
        persister = self.persister
        if persister.problem is not None:
            found.append(problem_named(STORE_AWAY, persister.problem, persister.problem_since_ms))
        for topic in self.topics.all():
            for host in topic.partitions:
                where = f"{topic.name}/{host.partition}"
                if host.role == "closed" and host.problem is None:
                    continue  # other nodes have it
                if not host.is_open:
                    detail = f"{where}: {host.problem}"
                    found.append(problem_named(PARTITION_CLOSED, detail, self.started_ms))
                elif host.store.faults:
                    detail = f"{where}: takes no publishes, {host.store.faults[0]}"
                    since_ms = self._damaged_ms.setdefault(host, now_ms)
                    found.append(problem_named(PARTITION_DAMAGED, detail, since_ms))
        return found

    def configure(self, config: Config) -> None:
        """Go on under other settings, as far as they can change (`model/reloading.py`)."""
        self.config = config
        self.topics.configure(config)
        self.groups.configure(config)
        self.group_cleaner.configure(config.groups)
        self.log_cleaner.configure(config)

    async def start(self) -> None:
        """Open all there is and begin to work."""
        self.topics.on_opened.append(self._run_scheduler)
        self.topics.before_closing.append(self._end_schedulers)
        if self._meta is None:
            self.stream_tokens = Tokens(await self._token_key())
            await self.topics.open()
            await self.dead_letters.open()
            await self.groups.open()
            await self.write_registry.open()
            await self.snapshots.open()
        else:
            await self._join(self._meta)
        for work in (
            self.batcher.run(),
            self.groups.run(),
            self.recurrences.run(),
            self.log_cleaner.run(),
            self.streams.run(),
            self.persister.run(),
            self.disk.run(),
            self.recorder.run(),
            self._watch(),
        ):
            self.spawn(work)
        if self._meta is not None:
            await self.groups.open()
        if self.replicated_streams is not None:
            self.log_cleaner.streams = self.replicated_streams.partitions
            self.spawn(self.replicated_streams.bring_over())
        if self.persister.is_shared:
            self.spawn(self.store_poller.run())
        # Else the first to store something would be refused. A database that is away is not
        # waited for any longer: all else can be served.
        with suppress(TimeoutError):
            async with asyncio.timeout(STORE_S_MAX):
                await self.persister.tried()
        self.is_serving = self._was_started = True

    def stop_serving(self) -> None:
        """Say that it takes no more requests."""
        if self.is_serving:
            self._changed_ms = self.clock.now_ms()
        self.is_serving = False

    async def stop(self) -> None:
        """Save what is known of progress, and end all that runs."""
        self.stop_serving()
        try:
            self.streams.stop()
            try:
                if not self.has_failed:
                    await self.groups.close()
            finally:
                await self.persister.close()
                if self._replication is not None:
                    await self._replication.stop()
        finally:
            for task in tuple(self._running):
                task.cancel()

    def token_of(self, stream: str, text: str) -> Token:
        """Return what a resume token says.

        One of another node is known by the key in their store: until that is open, nobody can say
        that it is forged.
        """
        try:
            return self.stream_tokens.decode(stream, text)
        except ForgedToken:
            self.persister.check_key()
            raise

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something until it ends or the node does."""
        # Begun by some request, perhaps, and not a part of it.
        task = self._tasks.create_task(work, context=Context())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def close(self) -> None:
        """Flush and close all files. The tasks must have ended."""
        try:
            self.topics.close()
        finally:
            try:
                self.recorder.save_at_stop()
                if self._meta is None:
                    self.metadata.close()
                else:
                    self._meta.close_replica("the node stops")
            finally:
                self._threads.stop()
                self._failure.cancel()

    # Of several nodes

    def _followed_meta(self, folder: Path, log_id: bytes) -> PartitionHost:
        OsFolder(folder).close()  # makes it; who looks after the disk looks for it
        return replica_host(
            META,
            0,
            log_folder=folder,
            timers_folder=None,
            config=replace(self.config, log=LOG, dedup=DedupConfig(enabled=False)),
            clock=self.clock,
            threads=self._threads,
            loop=asyncio.get_running_loop(),
            on_failed=self._fail,
            on_full=self._note_full,
            log_id=log_id,
        )

    async def _join(self, meta: PartitionHost) -> None:
        """Return when this node has all topics, and knows what the others know."""
        assert self._replication is not None
        assert isinstance(self.topics, ReplicatedTopics)
        self.topics.follow(self._replication)
        has_key = asyncio.Event()
        self.metadata.on_committed(TOKEN_KEY, lambda name, value: has_key.set())
        self.metadata.on_leading.append(self._spawn_lead)
        meta.on_role.append(lambda host: self.metadata.role_changed())
        await self._replication.open_meta(meta)
        await self._replication.joined()
        while (key := self.metadata.get(TOKEN_KEY)) is None:
            await has_key.wait()
        self.stream_tokens = Tokens(key)
        await self.topics.open()

    def _spawn_lead(self, is_leading: bool) -> None:
        # Who leads no more may be a node that is closing, with no tasks any more.
        if is_leading and not self.has_failed:
            self.spawn(self._lead_records())

    async def _lead_records(self) -> None:
        """Take up what only the leader of the records does."""
        if not self.metadata.is_leading:
            return
        assert isinstance(self.topics, ReplicatedTopics)
        try:
            await self._token_key()
            await self.topics.ensure_own(GROUPS_TOPIC, SETTINGS)
            await self.write_registry.tidy()
            await self.snapshots.tidy()
            await self.topics.drop_old_trash()
            await self.rights.drop_old()
        except Unavailable as error:
            log.warning("records_not_taken_up reason=%s", error)  # the next leader does

    def _run_scheduler(self, topic: Topic, host: PartitionHost) -> None:
        # Those of a replica are run by whoever replicates it, where it is led.
        if host.is_open and host.role == "alone":
            self._schedulers[host] = self.spawn(host.scheduler.run())

    async def _end_schedulers(self, topic: Topic) -> None:
        """Return when no timer of a topic can touch its log any more."""
        found = [self._schedulers.pop(host, None) for host in topic.partitions]
        tasks = [task for task in found if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _token_key(self) -> bytes:
        """Return the key of resume tokens, made when the node first runs."""
        key = self.metadata.get(TOKEN_KEY)
        if key is None:
            key = os.urandom(KEY_BYTES)
            await self.metadata.put(TOKEN_KEY, key)
        return key

    def _stored(self, stream: str, stored: Stored, record: Record, stored_ms: int) -> None:
        # Of a repeat, only the store knows what was said the first time.
        item = None
        if stored.is_new:
            item = Item(record.body, record.message_id, stored_ms, stored=stored.position)
        self.streams.note_stored(stream, stored.position, item)

    def _share_key(self, key: bytes) -> None:
        self.stream_tokens.share(key)

    def _note_full(self, error: StorageError) -> None:
        self.disk.note_full(error)

    def _fail(self, error: WaterclockError) -> None:
        if not self._failure.done():
            self._changed_ms = self.clock.now_ms()
            self._failure.set_exception(error)

    async def _watch(self) -> None:
        """End the node when a disk has failed: the exception leaves the task group."""
        await self._failure


@asynccontextmanager
async def running_node(
    config: Config, clock: Clock, replication: Replication | None = None
) -> AsyncIterator[Node]:
    """Run a node in the present loop for as long as the context lasts.

    Raises what made it end by itself, if something did.
    """
    node: Node | None = None
    try:
        async with task_group() as tasks:
            log_id = b"" if replication is None else await replication.meta_log_id()
            node = Node(config, clock, tasks, replication, log_id)
            try:
                await node.start()
            except BaseException:
                if replication is not None:
                    await replication.stop()  # before the logs are closed
                raise
            try:
                yield node
            finally:
                await node.stop()
    finally:
        if node is not None:
            # After a failed disk, that is what there is to tell, and not what came of it.
            with suppress(StorageError) if node.has_failed else nullcontext():
                node.close()


def _store_of(config: Config, folder: Path) -> StreamStore:
    url = config.streams.store
    return LogStore(folder / STREAMS) if url == "log:" else open_store(url)
