"""What a real broker refuses: dead letters and outputs that are too large; and a source that is
used by one pool after the other."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.burrow.pool_runs import until
from waterclock.burrow.core.failures import Failed, PermanentError
from waterclock.burrow.core.records import Record
from waterclock.burrow.kafka.dead_letters import KafkaDeadLetters
from waterclock.burrow.kafka.source import KafkaSource
from waterclock.burrow.kafka.transactions import KafkaTransactions
from waterclock.burrow.runtime.pool import Pool
from waterclock.burrow.runtime.source import Output
from waterclock.model.errors import Busy


def settings_of(broker, topic: str) -> dict[str, object]:
    return {**broker.settings, "group.id": f"group-of-{topic}", "session.timeout.ms": 6_000}


async def test_a_source_serves_the_next_pool_too(broker, topic):
    broker.create(topic)
    broker.publish(topic, 100)
    seen: list[bytes | None] = []

    async def process(record: Record) -> None:
        seen.append(record.value)

    source = KafkaSource(settings_of(broker, topic), [topic])
    for round_ in (1, 2):
        async with Pool(source, process):
            await until(lambda: len(seen) >= 100 * round_)  # noqa: B023
            with pytest.raises(Busy):
                await Pool(source, process).run()
        await asyncio.to_thread(broker.publish, topic, 100, start=100 * round_)
    assert Counter(seen).most_common(1)[0][1] == 1


async def test_a_dead_letter_the_broker_refuses_keeps_no_other_waiting_and_none_is_there_twice(
    broker, topic
):
    """Letters with headers are larger than the records they are of."""
    broker.create(f"{topic}.dlq", 1)
    records = [Record(topic, 0, offset, None, b"%d" % offset) for offset in range(20)]
    records.insert(10, Record(topic, 0, 99, None, b"x" * 1_048_500))
    records.insert(5, Record(topic, 0, 98, None, b"x" * 1_030_000))

    dead_letters = KafkaDeadLetters(broker.settings)
    with pytest.raises(Failed, match="large") as caught:
        await dead_letters.write_dead_letters(records, PermanentError("bad"))
    assert [record.offset for record in caught.value.records] == [99]
    with pytest.raises(Failed):
        await dead_letters.write_dead_letters(caught.value.records, PermanentError("bad"))
    found = Counter(len(value) for value in broker.read(f"{topic}.dlq"))
    assert found == {1: 10, 2: 10, 1_030_000: 1}


async def test_an_output_that_is_too_large_fails_its_record_and_not_the_transaction(broker, topic):
    broker.create(topic, 1)
    broker.create(f"{topic}-copy", 1)
    broker.publish(topic, 50)
    dead: list[int] = []

    class DeadLetterList:
        async def write_dead_letters(self, records: Sequence[Record], error: BaseException) -> None:
            dead.extend(record.offset for record in records)

    async def copy(record: Record) -> list[Output]:
        value = b"x" * 1_000_001 if record.offset == 7 else record.value
        return [Output(f"{topic}-copy", b"a"), Output(f"{topic}-copy", value)]

    source = KafkaTransactions(settings_of(broker, topic), [topic], transactional_id=f"id-{topic}")
    pool = Pool(
        source, copy, max_retries=1, retry_delay_s=0.01, commit_every_s=0.1, on_failure="dlq",
        dead_letters=DeadLetterList(),
    )  # fmt: skip
    async with pool:
        await until(lambda: dead)
        group = f"group-of-{topic}"
        done = 0
        while done < 50:
            done = (await asyncio.to_thread(broker.committed, topic, group, 1))[0]
    assert pool.metrics.commit_failures == 0
    assert dead == [7]
    assert len(broker.read(f"{topic}-copy")) == 98


async def test_a_producer_that_cannot_be_is_an_error_of_the_source(broker, topic):
    broker.create(topic, 1)
    settings = {"transaction.timeout.ms": 10_000_000_000}
    source = KafkaTransactions(
        settings_of(broker, topic), [topic], transactional_id="id", producer=settings
    )

    with pytest.raises(Exception, match=r"transactions cannot begin"):
        await Pool(source, lambda record: None).run()
