"""Coordinators for the contract suite, and their faults: a fake on virtual time, a real etcd, and
that of processes on one machine."""

import asyncio
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP
from typing import Any, Protocol, TypeVar

from tests.cluster.coordinator.etcd_servers import EtcdMember
from waterclock.cluster.coordinator.coordinator import Coordinator
from waterclock.cluster.coordinator.fake import FakeCoordinator
from waterclock.cluster.coordinator.questions import (
    Grant,
    KeepAlive,
    Outcome,
    Question,
    Read,
    Revoke,
    Watch,
)
from waterclock.cluster.coordinator.requests import (
    KeyRange,
    Lease,
    LeaseId,
    RangeResult,
    Revision,
    Txn,
    TxnResult,
    WatchBatch,
)
from waterclock.server.cluster.etcd.coordinator import EtcdCoordinator
from waterclock.server.cluster.etcd.members import EtcdSettings
from waterclock.server.cluster.processes.coordinator import ProcessCoordinator
from waterclock.server.cluster.processes.journal import Journal
from waterclock.server.cluster.processes.service import CoordinatorService, coordinating
from waterclock.storage.folders.os_folder import OsFolder

Result = TypeVar("Result")


class World(Protocol):
    """A store, clients of it, and what can happen to it."""

    def client(self, *, is_impatient: bool = False) -> AbstractAsyncContextManager[Coordinator]: ...

    def compact(self, revision: Revision) -> None: ...

    def go_away(self) -> None: ...

    def come_back(self) -> None: ...

    def stall(self) -> None: ...

    def resume(self) -> None: ...

    def keep_copy(self) -> None:
        """Remember all it has. Connections may break."""
        ...

    def restore_copy(self) -> None:
        """Make it what it was then."""
        ...


class FakeWorld:
    """Time passes whenever somebody waits, up to the next thing that happens."""

    def __init__(self, seed: int) -> None:
        self.fake = FakeCoordinator(Random(seed))
        self.waits: dict[tuple[str, int], asyncio.Queue[Outcome]] = {}
        self._something_asked = asyncio.Event()
        self._clients = 0

    @asynccontextmanager
    async def client(self, *, is_impatient: bool = False) -> AsyncIterator[Coordinator]:
        self._clients += 1
        yield DrivenClient(self, f"client-{self._clients}")
        self.fake.check_invariants()

    def compact(self, revision: Revision) -> None:
        self.fake.compact(revision)

    def go_away(self) -> None:
        self.fake.go_away()

    def come_back(self) -> None:
        self.fake.come_back()
        self._something_asked.set()

    def stall(self) -> None:
        self.fake.stall()

    def resume(self) -> None:
        self.fake.resume()
        self._something_asked.set()

    def keep_copy(self) -> None:
        self.copy = self.fake.store.snapshot()

    def restore_copy(self) -> None:
        self.fake.restore(self.copy)
        self._something_asked.set()

    def ask(self, client: str, number: int, question: Question) -> asyncio.Queue[Outcome]:
        self.waits[client, number] = asyncio.Queue()
        self.fake.ask(client, number, question)
        self._something_asked.set()
        return self.waits[client, number]

    async def until_answered(self, answers: asyncio.Queue[Outcome]) -> Outcome:
        while answers.empty():
            self._something_asked.clear()
            deadline_ms = self.fake.next_deadline()
            if deadline_ms is None:
                await self._something_asked.wait()
            else:
                for client, number, outcome in self.fake.tick(deadline_ms):
                    self.waits[client, number].put_nowait(outcome)
                await asyncio.sleep(0)
        return answers.get_nowait()


class DrivenClient:
    """A client of the fake, as coroutines."""

    def __init__(self, world: FakeWorld, name: str) -> None:
        self._world = world
        self._name = name
        self._number = 0

    async def read(self, keys: KeyRange) -> RangeResult:
        return await self._answer(Read(keys))  # type: ignore[no-any-return]

    async def write(self, txn: Txn) -> TxnResult:
        return await self._answer(txn)  # type: ignore[no-any-return]

    async def grant(self, ttl_s: int) -> Lease:
        return await self._answer(Grant(ttl_s))  # type: ignore[no-any-return]

    async def keep_alive(self, lease: LeaseId) -> Lease:
        return await self._answer(KeepAlive(lease))  # type: ignore[no-any-return]

    async def revoke(self, lease: LeaseId) -> None:
        await self._answer(Revoke(lease))

    @asynccontextmanager
    async def watch(
        self, keys: KeyRange, *, from_revision: Revision
    ) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        answers = self._ask(Watch(keys, from_revision))
        number = self._number

        async def batches() -> AsyncIterator[WatchBatch]:
            while True:
                yield raised(await self._world.until_answered(answers))

        yield batches()
        self._world.fake.end_watch(self._name, number)

    def _ask(self, question: Question) -> asyncio.Queue[Outcome]:
        self._number += 1
        return self._world.ask(self._name, self._number, question)

    async def _answer(self, question: Question) -> Any:
        return raised(await self._world.until_answered(self._ask(question)))


def raised(outcome: Outcome) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class EtcdWorld:
    """One member of etcd."""

    def __init__(self, member: EtcdMember, folder: Path) -> None:
        self._member = member
        self._copy = folder / "copy"

    @asynccontextmanager
    async def client(self, *, is_impatient: bool = False) -> AsyncIterator[Coordinator]:
        attempt_s = 0.3 if is_impatient else 30.0
        settings = EtcdSettings(
            endpoints=(self._member.endpoint,), attempt_s=attempt_s, keepalive_ms=60_000
        )
        coordinator = EtcdCoordinator(settings)
        try:
            yield coordinator
        finally:
            await coordinator.close()

    def compact(self, revision: Revision) -> None:
        self._member.post("kv/compaction", {"revision": revision, "physical": True})

    def go_away(self) -> None:
        self._member.kill()

    def come_back(self) -> None:
        self._member.start()

    def stall(self) -> None:
        self._member.send(SIGSTOP)

    def resume(self) -> None:
        self._member.send(SIGCONT)

    def keep_copy(self) -> None:
        self._member.kill()
        self._member.copy_data(self._copy)
        self._member.start()

    def restore_copy(self) -> None:
        self._member.kill()
        self._member.put_back(self._copy)
        self._member.start()


class LateLink:
    """A way to a member: questions pass at once, and answers come late by so much."""

    def __init__(self, port: int) -> None:
        self._far_port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._serving: set[asyncio.Task[None]] = set()
        self.late_s = 0.0
        self.endpoint = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["LateLink"]:
        """Be a place to connect to while inside."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.endpoint = f"{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            if self._serving:
                await asyncio.wait(self._serving)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        far, on = await asyncio.open_connection("127.0.0.1", self._far_port)
        self._writers += [back, on]
        await asyncio.gather(self._pass(near, on), self._hold_up(far, back))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await self._read(reader):
            writer.write(data)
        writer.close()

    async def _hold_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, due_s = asyncio.get_running_loop(), 0.0
        while data := await self._read(reader):
            due_s = max(due_s, loop.time() + self.late_s)  # whatever was sent first comes first
            loop.call_at(due_s, writer.write, data)
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        with suppress(OSError):
            return await reader.read(1 << 16)
        return b""


class ProcessWorld:
    """The coordinator of processes, in a thread with a loop of its own. What it has is on disk, and
    is read from there each time it comes back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "coordinator"
        self._copy = folder / "copy"
        self._stalled = threading.Event()
        self.come_back()

    @asynccontextmanager
    async def client(self, *, is_impatient: bool = False) -> AsyncIterator[Coordinator]:
        coordinator = ProcessCoordinator(self._connect, attempt_s=0.3 if is_impatient else 30.0)
        try:
            yield coordinator
        finally:
            await coordinator.close()

    async def _connect(self) -> socket.socket:
        if not self._thread.is_alive():
            raise ConnectionRefusedError
        return self._done(self._service.connect())

    def compact(self, revision: Revision) -> None:
        async def compact() -> None:
            self._service.store.compact(revision)

        self._done(compact())

    def go_away(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def come_back(self) -> None:
        begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(begun)), daemon=True)
        self._thread.start()
        begun.wait()

    def stall(self) -> None:
        self._stalled.clear()
        self._loop.call_soon_threadsafe(self._stalled.wait)

    def resume(self) -> None:
        self._stalled.set()

    def keep_copy(self) -> None:
        shutil.copytree(self._folder, self._copy)

    def restore_copy(self) -> None:
        self.go_away()
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
        self.come_back()

    async def _run(self, begun: threading.Event) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        journal = Journal(OsFolder(self._folder), now_ms=int(self._loop.time() * 1000))
        self._service: CoordinatorService
        async with coordinating(journal) as self._service:
            begun.set()
            await self._ending.wait()
        journal.close()
        journal.store.check_invariants()

    def _done(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
