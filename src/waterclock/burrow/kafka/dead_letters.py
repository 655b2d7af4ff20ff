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

    async def bury(self, records: Sequence[Record], error: BaseException) -> None:
        """Write records; raise `Failed` with those that were not."""
        await asyncio.to_thread(self._bury, records, error)

    def _bury(self, records: Sequence[Record], error: BaseException) -> None:
        letters = [_Letter(record) for record in records]
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._settings)
            for letter in letters:
                self._post(self._producer, letter, error)
            self._producer.flush(FLUSH_S)
            if any(letter.is_fatal for letter in letters):
                self._producer = None  # it will never write again; the next one may
        lost = [letter for letter in letters if letter.problem]
        if lost:
            text = f"dead letters: {lost[0].problem}"
            raise Failed([letter.record for letter in lost], SourceFailed(text))

    def _post(self, producer: Producer, letter: "_Letter", error: BaseException) -> None:
        record = letter.record
        try:
            producer.produce(
                self._topic or f"{record.topic}{SUFFIX}",
                record.value,
                record.key,
                headers=[*headers_of(record, error, now_ms=wall_ms())],
                on_delivery=letter.answered,
            )
        except (KafkaException, BufferError) as problem:
            letter.problem = str(problem)


class _Letter:
    """One that was sent, and what the broker says of it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.problem = f"no answer within {FLUSH_S:.0f} s"
        """Why it is not written, as far as that is known; empty if it is."""
        self.is_fatal = False

    def answered(self, problem: KafkaError | None, message: Message) -> None:
        self.problem = "" if problem is None else problem.str()
        self.is_fatal = problem is not None and problem.fatal()
