"""Consume, process, produce: each message once in the output, whatever happens on the way."""

import asyncio

import pytest
from confluent_kafka import KafkaError, Producer

from tests.burrow.source_contract import run
from waterclock.burrow.kafka_transactions import KafkaTransactions
from waterclock.burrow.pool import Pool
from waterclock.burrow.records import Record
from waterclock.burrow.source import Output, SourceFailed

COUNT = 3_000


class Copier:
    """Copies a topic; fails where it is told to."""

    def __init__(self, broker, topic: str, *, name: str = "copier") -> None:
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
            self.source, self.copy, workers=50, commit_every_s=0.1, commit_every=500,
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


async def until_committed(broker, topic: str) -> None:
    """Return when the whole topic is committed; the test's patience is the limit."""
    done = 0
    while done < COUNT:
        found = await asyncio.to_thread(broker.committed, topic, f"group-of-{topic}")
        done = sum(found.values())


def test_a_copy_has_each_message_once(broker, topics):
    async def test() -> None:
        copier = Copier(broker, topics)
        async with copier.pool:
            await copier.until(1_000)
        copier = Copier(broker, topics)
        async with copier.pool:
            await until_committed(broker, topics)

    run(test)
    assert sorted(broker.read(f"{topics}-copy")) == expected()


def test_a_transaction_that_fails_is_done_again(broker, topics, monkeypatch):
    async def test() -> None:
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

    run(test)
    assert sorted(broker.read(f"{topics}-copy")) == expected()


def test_members_come_and_go(broker, topics):
    async def test() -> None:
        first = Copier(broker, topics, name="first")
        async with first.pool:
            await first.until(300)
            second = Copier(broker, topics, name="second")
            async with second.pool:
                await second.until(100)
            await until_committed(broker, topics)

    run(test)
    assert sorted(broker.read(f"{topics}-copy")) == expected()


def test_a_process_that_was_replaced_is_fenced_and_its_pool_ends(broker, topics):
    async def test() -> None:
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

    run(test)
    assert sorted(broker.read(f"{topics}-copy")) == expected()
