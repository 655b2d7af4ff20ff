"""Consume, process, produce: each message once in the output, whatever happens on the way."""

import asyncio
import time

import pytest
from confluent_kafka import KafkaError, Producer

from waterclock.burrow.core.records import Record
from waterclock.burrow.kafka.transactions import KafkaTransactions
from waterclock.burrow.runtime.pool import Pool
from waterclock.burrow.runtime.source import Output, SourceFailed

COUNT = 3_000
HELD = 400
"""The message whose copy waits for a rebalance, so that there is something to commit in it."""


class Copier:
    """Copies a topic; fails where it is told to."""

    def __init__(self, broker, topic: str, *, name: str = "copier", copy=None) -> None:
        settings = {
            **broker.settings,
            "group.id": f"group-of-{topic}",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 300,
        }
        self.source = KafkaTransactions(
            settings, [topic], transactional_id=f"{name}-{topic}",
            producer={"transaction.timeout.ms": 10_000},
        )  # fmt: skip
        self._target = f"{topic}-copy"
        self.copied = 0
        self.more = asyncio.Event()
        self.pool = Pool(
            self.source, copy or self.copy, workers=50, commit_every_s=0.1, commit_every=500,
            retry_delay_s=0.01, handle_signals=False,
        )  # fmt: skip

    async def copy(self, record: Record) -> list[Output]:
        number = int(record.value or b"")
        await asyncio.sleep(0.001 * (number % 5))
        if number % 500 == 7 and record.attempt == 1:
            raise ConnectionError("once")
        self.copied += 1
        self.more.set()
        return [Output(self._target, record.value, record.key)]

    async def until(self, count: int) -> None:
        while self.copied < count:
            self.more.clear()
            await self.more.wait()


@pytest.fixture
def topics(broker, topic):
    broker.create(topic)
    broker.create(f"{topic}-copy", 1)
    broker.publish(topic, COUNT)
    return topic


def expected() -> list[bytes]:
    return sorted(b"%d" % number for number in range(COUNT))


async def until_committed(broker, topic: str, count: int = COUNT) -> None:
    """Return when the whole topic is committed; the test's patience is the limit."""
    done = 0
    while done < count:
        found = await asyncio.to_thread(broker.committed, topic, f"group-of-{topic}")
        done = sum(found.values())


async def test_a_copy_has_each_message_once(broker, topics):
    copier = Copier(broker, topics)
    async with copier.pool:
        await copier.until(1_000)
    copier = Copier(broker, topics)
    async with copier.pool:
        await until_committed(broker, topics)
    assert sorted(broker.read(f"{topics}-copy")) == expected()


async def test_a_transaction_that_fails_is_done_again(broker, topics, monkeypatch):
    copier = Copier(broker, topics)
    commit, failures = copier.source._commit_transaction, [3]

    def unlucky(commits):
        if failures[0] and copier.copied > 500:
            failures[0] -= 1
            return KafkaError(KafkaError._TRANSPORT, "cut")
        return commit(commits)

    monkeypatch.setattr(copier.source, "_commit_transaction", unlucky)
    async with copier.pool:
        await copier.until(COUNT)
        await until_committed(broker, topics)
    assert failures == [0]
    assert copier.copied > COUNT
    assert sorted(broker.read(f"{topics}-copy")) == expected()


async def test_a_commit_that_fails_in_a_rebalance_takes_no_output_with_it(
    broker, topics, monkeypatch
):
    """The last commit must not name places whose outputs went with an aborted transaction."""
    failures: list[int] = []
    on_revoke = KafkaTransactions._on_revoke
    commit_transaction = KafkaTransactions._commit_transaction

    def revoke_while_a_commit_waits(self, consumer, places):
        is_first = self._producer_settings["transactional.id"] == f"first-{topics}"
        if is_first and places:
            loop.call_soon_threadsafe(is_revoking.set)
        # What was held is done then, and a commit asked for.
        while is_first and places and not failures and not self.is_sealed:
            time.sleep(0.001)
        on_revoke(self, consumer, places)

    def fail_once(self, commits):
        if self._is_revoking and not failures:
            failures.append(len(commits))
            return KafkaError(KafkaError._STATE, "planted")
        return commit_transaction(self, commits)

    monkeypatch.setattr(KafkaTransactions, "_on_revoke", revoke_while_a_commit_waits)
    monkeypatch.setattr(KafkaTransactions, "_commit_transaction", fail_once)

    async def copy_held(record: Record) -> list[Output]:
        if record.value == b"%d" % HELD:
            is_held.set()
            await is_revoking.wait()
        return await Copier.copy(first, record)

    loop = asyncio.get_running_loop()
    is_held, is_revoking = asyncio.Event(), asyncio.Event()
    first = Copier(broker, topics, name="first", copy=copy_held)
    async with first.pool:
        await is_held.wait()
        second = Copier(broker, topics, name="second")
        async with second.pool:
            await until_committed(broker, topics)
    assert len(failures) == 1
    assert sorted(broker.read(f"{topics}-copy")) == expected()


async def test_nothing_is_read_in_the_midst_of_a_rewind(broker, topics, monkeypatch):
    """A rebalance would run there, and take what is begun with right after it."""
    rewinds: list[bool] = []
    read: list[bool] = []
    rewind, records = KafkaTransactions._rewind, KafkaTransactions._records
    commit_transaction = KafkaTransactions._commit_transaction

    def noted_rewind(self):
        rewinds.append(True)
        rewind(self)
        rewinds.append(False)

    def noted_records(self, messages):
        read.append(bool(rewinds) and rewinds[-1])
        return records(self, messages)

    def fail_at_first(self, commits):
        if len(rewinds) < 8 and not self._is_revoking:
            return KafkaError(KafkaError._STATE, "planted")
        return commit_transaction(self, commits)

    monkeypatch.setattr(KafkaTransactions, "_rewind", noted_rewind)
    monkeypatch.setattr(KafkaTransactions, "_records", noted_records)
    monkeypatch.setattr(KafkaTransactions, "_commit_transaction", fail_at_first)

    copier = Copier(broker, topics)
    async with copier.pool:
        await until_committed(broker, topics)
    assert len(rewinds) == 8
    assert not any(read)
    assert sorted(broker.read(f"{topics}-copy")) == expected()


async def test_members_come_and_go(broker, topics):
    extra: list[int] = []

    first = Copier(broker, topics, name="first")
    async with first.pool:
        await first.until(300)
        second = Copier(broker, topics, name="second")
        async with second.pool:
            # The first may be done with everything before the second has a partition.
            while second.copied < 100:
                await asyncio.to_thread(broker.publish, topics, 100, start=len(extra) + COUNT)
                extra.extend(range(100))
        await until_committed(broker, topics, COUNT + len(extra))
    copied = sorted(broker.read(f"{topics}-copy"))
    assert copied == sorted(b"%d" % number for number in range(COUNT + len(extra)))


async def test_a_process_that_was_replaced_is_fenced_and_its_pool_ends(broker, topics):
    copier = Copier(broker, topics)
    usurper = Producer({**broker.settings, "transactional.id": f"copier-{topics}"})

    usurpation: asyncio.Future[None] | None = None

    async def usurp() -> None:
        nonlocal usurpation
        async with copier.pool:
            await copier.until(300)
            loop = asyncio.get_running_loop()
            usurpation = loop.run_in_executor(None, usurper.init_transactions, 30)
            await asyncio.Event().wait()

    with pytest.raises(SourceFailed):
        await usurp()
    assert usurpation is not None
    await usurpation
    assert copier.pool.state == "failed"
    again = Copier(broker, topics)
    async with again.pool:
        await until_committed(broker, topics)
    assert sorted(broker.read(f"{topics}-copy")) == expected()
