"""Dead letters in a Kafka topic: `<topic>.dlq` beside each topic, or one for all."""

import asyncio
import threading
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from waterclock.burrow.core.failures import Failed
from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.dead_letters import SUFFIX, headers_of, wall_ms
from waterclock.burrow.runtime.source import SourceFailed

FLUSH_S = 30.0
USUAL = {"message.timeout.ms": 20_000, "message.max.bytes": 64 << 20}
"""Whatever has no answer after a flush would stay in the client's queue, and be there twice after
the next try: so it is given up before. How large a letter may be is for the broker to say: the
client's own limit is below what Java's producers send, and a letter has headers on top."""


class KafkaDeadLetters:
    """Writes records with `acks=all`, and waits for the answers. `settings` are librdkafka's."""

    def __init__(self, settings: Mapping[str, object], *, topic: str | None = None) -> None:
        self._settings = {**USUAL, **settings, "enable.idempotence": True}
        self._topic = topic
        self._producer: Producer | None = None
        self._lock = threading.Lock()

    async def write_dead_letters(self, records: Sequence[Record], error: BaseException) -> None:
        """Write records; raise `Failed` with those that were not."""
        await asyncio.to_thread(self._write_dead_letters, records, error)

    def _write_dead_letters(self, records: Sequence[Record], error: BaseException) -> None:
        dead_letters = [_DeadLetter(record) for record in records]
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._settings)
            for dead_letter in dead_letters:
                self._post(self._producer, dead_letter, error)
            self._producer.flush(FLUSH_S)
            if any(dead_letter.is_fatal for dead_letter in dead_letters):
                self._producer = None  # it will never write again; the next one may
        lost = [dead_letter for dead_letter in dead_letters if dead_letter.problem]
        if lost:
            text = f"dead letters: {lost[0].problem}"
            raise Failed([dead_letter.record for dead_letter in lost], SourceFailed(text))

    def _post(self, producer: Producer, dead_letter: "_DeadLetter", error: BaseException) -> None:
        record = dead_letter.record
        try:
            producer.produce(
                self._topic or f"{record.topic}{SUFFIX}",
                record.value,
                record.key,
                headers=[*headers_of(record, error, now_ms=wall_ms())],
                on_delivery=dead_letter.answered,
            )
        except (KafkaException, BufferError) as problem:
            dead_letter.problem = str(problem)


class _DeadLetter:
    """One that was sent, and what the broker says of it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.problem = f"no answer within {FLUSH_S:.0f} s"
        """Why it is not written, as far as that is known; empty if it is."""
        self.is_fatal = False

    def answered(self, problem: KafkaError | None, message: Message) -> None:
        self.problem = "" if problem is None else problem.str()
        self.is_fatal = problem is not None and problem.fatal()
