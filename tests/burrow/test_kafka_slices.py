"""A poll of Kafka is made into records by slices, between which the loop can go on."""

from collections.abc import Callable, Mapping, Sequence

import pytest
from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition

from waterclock.burrow.core.records import Assignment
from waterclock.burrow.kafka import source as module
from waterclock.burrow.kafka.source import NEEDED, KafkaSource


class FullConsumer:
    """A client that has all it is asked for, and notes how much that was."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.asked: list[int] = []
        self._offset = 0

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        self._on_assign = callbacks["on_assign"]

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        if not self._offset:
            self._on_assign(self, [KafkaPartition("t", 0)])
        self.asked.append(count)
        start, self._offset = self._offset, self._offset + count
        return [
            Message(topic="t", partition=0, offset=offset, key=None, value=b"v")
            for offset in range(start, self._offset)
        ]

    def committed(self, places: list[KafkaPartition], timeout: float) -> list[KafkaPartition]:
        return places

    def incremental_assign(self, places: list[KafkaPartition]) -> None:
        pass

    def resume(self, places: list[KafkaPartition]) -> None:
        pass

    def close(self) -> None:
        pass


class Owner:
    """Takes note of nothing."""

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        pass


@pytest.mark.parametrize(
    ("count", "slices"),
    [(1, [1]), (125, [125]), (250, [125, 125]), (251, [126, 125]), (2_000, [1_000, 1_000])],
)
async def test_a_poll_is_made_into_records_in_two_slices(
    monkeypatch: pytest.MonkeyPatch, count: int, slices: list[int]
) -> None:
    made: list[FullConsumer] = []

    def consumer(settings: Mapping[str, object]) -> FullConsumer:
        made.append(FullConsumer(settings))
        return made[0]

    monkeypatch.setattr(module, "Consumer", consumer)
    source = KafkaSource(NEEDED, ["t"])
    await source.open(Owner())  # type: ignore[arg-type]
    try:
        records = await source.poll(count, 0.1)
    finally:
        await source.close()

    assert [record.offset for record in records] == [*range(count)]
    assert made[0].asked == slices
