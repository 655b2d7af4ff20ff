"""Messages on their way into a store: together, in order, and what a store that is away means."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.kit.clock import ManualClock
from waterclock.model.errors import BadConfig, BadInput, Overloaded, StoreUnavailable
from waterclock.node.streams import persister as module
from waterclock.node.streams.persister import Persister
from waterclock.stores.base import Page, Record, Stored, StoredMessage


class FakeStore:
    """Keeps messages in a list; waits for its gate, and fails when told to."""

    is_shared = False

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.kept: dict[str, list[Record]] = {}
        self.is_away = False
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.purged = 0

    async def open(self) -> None:
        self._check()

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        self.calls.append([record.message_id for record in records])
        await self.gate.wait()
        self._check()
        kept = self.kept.setdefault(stream, [])
        answers = []
        for record in records:
            known = [r.message_id for r in kept]
            if record.message_id in known:
                answers.append(Stored(known.index(record.message_id) + 1, False))
            else:
                kept.append(record)
                answers.append(Stored(len(kept), True))
        return answers

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = 0
    ) -> Page:
        self._check()
        kept = self.kept.get(stream, [])
        numbered = list(enumerate(kept, 1))[after : after + limit]
        messages = [StoredMessage(n, r.message_id, r.body, 0, None) for n, r in numbered]
        return Page(messages, len(kept))

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        self._check()
        return len(self.kept.pop(stream, []))

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        self._check()
        self.purged += 1
        return 0

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
        if self.is_away:
            raise StoreUnavailable("the database is away")


class Setting:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.store = FakeStore()
        self.heard: list[tuple[str, int]] = []
        self.keys: list[bytes] = []
        self.persister = Persister(
            self.store,
            ManualClock(),
            tasks.create_task,
            lambda stream, stored, *_: self.heard.append((stream, stored.position)),
            self.keys.append,
        )

    async def put(self, stream: str, *ids: str, size: int = 1) -> list[Stored]:
        records = [Record(id_, bytes(size)) for id_ in ids]
        return await asyncio.gather(*(self.persister.store(stream, record) for record in records))


async def opened(persister: Persister) -> None:
    """Let the loop turn until the store is open."""
    while persister.problem is not None:  # noqa: ASYNC110 - it is about the insides
        await asyncio.sleep(0)


async def called(store: FakeStore, times: int) -> None:
    """Let the loop turn until a store was called so often, and then a little more."""
    while len(store.calls) < times:  # noqa: ASYNC110 - it is about the insides of a fake
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    async with asyncio.TaskGroup() as tasks:
        it = Setting(tasks)
        running = tasks.create_task(it.persister.run())
        await opened(it.persister)
        yield it
        running.cancel()


async def test_what_comes_during_a_call_goes_together_in_the_next():
    async with setting() as it:
        it.store.gate.clear()
        first = asyncio.ensure_future(it.put("s", "a"))
        await called(it.store, 1)
        rest = asyncio.ensure_future(it.put("s", "b", "c", "a"))
        other = asyncio.ensure_future(it.put("t", "x"))
        await called(it.store, 2)
        it.store.gate.set()

        assert await first == [Stored(1, True)]
        assert await rest == [Stored(2, True), Stored(3, True), Stored(1, False)]
        assert await other == [Stored(1, True)]
        assert it.store.calls == [["a"], ["x"], ["b", "c", "a"]]
        assert [p for s, p in it.heard if s == "s"] == [1, 2, 3, 1]
        assert it.persister.stored == 5


async def test_a_store_that_is_away_fails_its_calls_and_is_asked_again():
    async with setting() as it:
        it.store.is_away = True
        with pytest.raises(StoreUnavailable, match="away"):
            await it.put("s", "a")
        with pytest.raises(StoreUnavailable):
            await it.persister.read("s", after=0, limit=1)
        assert it.persister.problem == "the database is away"

        it.store.is_away = False
        assert await it.put("s", "a") == [Stored(1, True)]
        assert it.persister.problem is None
        assert it.persister.failed == 1


async def test_a_node_begins_without_its_store(monkeypatch):
    monkeypatch.setattr(module, "REOPEN_S", 0)

    async with asyncio.TaskGroup() as tasks:
        it = Setting(tasks)
        it.store.is_away = True
        with pytest.raises(StoreUnavailable, match="not open yet"):
            await it.put("s", "a")
        running = tasks.create_task(it.persister.run())
        for _ in range(5):
            await asyncio.sleep(0)
        assert it.persister.problem == "the database is away"
        it.store.is_away = False
        await opened(it.persister)
        assert await it.put("s", "a") == [Stored(1, True)]
        running.cancel()


async def test_too_much_on_its_way_is_refused(monkeypatch):
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 100)

    async with setting() as it:
        it.store.gate.clear()
        first = asyncio.ensure_future(it.put("s", "a", size=90))
        await called(it.store, 1)
        with pytest.raises(Overloaded, match="bytes on their way into the store"):
            await it.persister.store("s", Record("b", bytes(20)))
        it.store.gate.set()
        await first
        assert await it.put("s", "b", size=90) == [Stored(2, True)]


async def test_large_messages_go_by_themselves(monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 100)

    async with setting() as it:
        await it.put("s", "a", "b", "c", size=60)

        assert it.store.calls == [["a"], ["b"], ["c"]]


async def test_a_bug_in_a_store_fails_its_callers_and_nobody_else(caplog):
    async with setting() as it:
        it.store.error = RuntimeError("the driver is confused")
        with pytest.raises(RuntimeError, match="confused"):
            await it.put("s", "a")
        await it.persister._purge()
        assert "the driver is confused" in caplog.text

        it.store.error = None
        assert await it.put("s", "a") == [Stored(1, True)]


async def test_a_caller_that_leaves_stops_nobody_else():
    async with setting() as it:
        it.store.gate.clear()
        leaving = asyncio.ensure_future(it.put("s", "a"))
        staying = asyncio.ensure_future(it.put("s", "b"))
        await called(it.store, 1)
        leaving.cancel()
        it.store.gate.set()

        assert (await staying)[0].is_new
        assert [r.message_id for r in it.store.kept["s"]] == ["a", "b"]


@pytest.mark.parametrize(
    "error", [RuntimeError("unheard of"), BadConfig("streams.store", "no such account")]
)
async def test_a_node_goes_on_whatever_is_wrong_when_its_store_is_opened(
    error, monkeypatch, caplog
):
    monkeypatch.setattr(module, "REOPEN_S", 0)

    async with asyncio.TaskGroup() as tasks:
        it = Setting(tasks)
        it.store.error = error
        running = tasks.create_task(it.persister.run())
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match=str(error)):
            await it.put("s", "a")
        it.store.error = None
        await opened(it.persister)
        assert await it.put("s", "a") == [Stored(1, True)]
        running.cancel()
    assert caplog.text.count("unheard of") <= 2  # the line and its traceback, once


async def test_what_the_account_may_not_do_is_the_stores_trouble_and_not_the_callers():
    async with setting() as it:
        it.store.error = BadConfig("streams.store", "permission denied")
        for call in (
            it.persister.store("s", Record("a", b"")),
            it.persister.read("s", after=0, limit=1),
            it.persister.delete("s"),
        ):
            with pytest.raises(StoreUnavailable, match="permission denied"):
                await call
        assert "permission denied" in str(it.persister.problem)


async def test_a_store_that_hangs_has_nobody_wait_for_it_twice(monkeypatch):
    monkeypatch.setattr(module, "BATCH_RECORDS", 1)

    async with setting() as it:
        it.store.gate.clear()
        many = [it.persister.store("s", Record(f"{n}", b"1")) for n in range(5)]
        waiting = asyncio.gather(*many, return_exceptions=True)
        await called(it.store, 1)
        it.store.is_away = True
        it.store.gate.set()

        assert {type(each) for each in await waiting} == {StoreUnavailable}
        assert len(it.store.calls) == 1
        assert it.persister._waiting_bytes == 0
        it.store.is_away = False
        assert await it.put("s", "a") == [Stored(1, True)]


async def test_nodes_that_share_a_store_find_the_same_key_in_it(monkeypatch):
    monkeypatch.setattr(module, "REOPEN_S", 0)

    async with asyncio.TaskGroup() as tasks:
        one, other = Setting(tasks), Setting(tasks)
        other.store = other.persister._store = one.store
        for it in (one, other):
            it.persister.is_shared = True
            with pytest.raises(StoreUnavailable):
                it.persister.check_key()
        running = [tasks.create_task(it.persister.run()) for it in (one, other)]
        for it in (one, other):
            await opened(it.persister)
            it.persister.check_key()
        assert one.keys == other.keys
        assert len(one.keys) == 1
        for each in running:
            each.cancel()

        for call in (
            one.persister.store(module.OWN_STREAM, Record("a", b"")),
            one.persister.read(module.OWN_STREAM, after=0, limit=1),
            one.persister.delete(module.OWN_STREAM),
        ):
            with pytest.raises(BadInput, match="own"):
                await call
