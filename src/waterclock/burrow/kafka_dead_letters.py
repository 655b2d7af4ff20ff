"""Dead letters in a Kafka topic: `<topic>.dlq` beside each topic, or one for all."""

import asyncio
import threading
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, Message, Producer

from waterclock.burrow.dead_letters import SUFFIX, headers_of, wall_ms
from waterclock.burrow.records import Record
from waterclock.burrow.source import SourceFailed

FLUSH_S = 30.0


class KafkaDeadLetters:
    """Writes records with `acks=all`, and waits for the answers. `settings` are librdkafka's."""

    def __init__(self, settings: Mapping[str, object], *, topic: str | None = None) -> None:
        self._settings = {**settings, "enable.idempotence": True}
        self._topic = topic
        self._producer: Producer | None = None
        self._lock = threading.Lock()

    async def bury(self, records: Sequence[Record], error: BaseException) -> None:
        """Write records; raise if any of them was not."""
        await asyncio.to_thread(self._bury, records, error)

    def _bury(self, records: Sequence[Record], error: BaseException) -> None:
        errors: list[KafkaError] = []

        def answered(problem: KafkaError | None, message: Message) -> None:
            if problem is not None:
                errors.append(problem)

        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._settings)
            for record in records:
                self._producer.produce(
                    self._topic or f"{record.topic}{SUFFIX}",
                    record.value,
                    record.key,
                    headers=[*headers_of(record, error, now_ms=wall_ms())],
                    on_delivery=answered,
                )
            left = self._producer.flush(FLUSH_S)
        if left or errors:
            reason = errors[0].str() if errors else f"no answer within {FLUSH_S:.0f} s"
            raise SourceFailed(f"dead letters: {reason}")
