"""Consume, process and produce, exactly once: outputs and offsets are one transaction, or neither.

A function returns what is to be produced. One transaction holds the outputs of everything finished
since the last; with it go the offsets and the offset maps, so records may be finished in any order
and still count once. While a transaction is committed nothing is added to it: what is finished then
waits for the next.

If a transaction fails it is aborted, and everything since the last one is done again. A process
that was taken for dead is fenced: it cannot commit, and its pool ends with an error. Readers of the
output must use `isolation.level=read_committed`, librdkafka's default.

A transaction holds outputs of all partitions, so they come and go together: the rebalance protocol
is the eager one.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from waterclock.burrow.core.config import MapText
from waterclock.burrow.core.records import Commit, Record, TopicPartition
from waterclock.burrow.kafka.source import KafkaSource, places_of
from waterclock.burrow.runtime.source import NOT_OURS, Output, SourceFailed
from waterclock.model.errors import BadConfig, BadInput

TRANSACTION_S = 30.0
"""How long a step of a transaction may take before it is tried again or aborted."""
TRIES = 3
CONNECTION = (
    "bootstrap.", "broker.", "client.", "enable.ssl.", "log_level", "metadata.", "oauth_cb",
    "reconnect.", "sasl.", "security.", "socket.", "ssl.",
)  # fmt: skip
"""How settings begin that the producer shares."""
TRANSACTION_MS_MAX = 60_000
"""librdkafka's transaction.timeout.ms, unless the settings say otherwise."""
OUTPUT_BYTES_MAX = 1_000_000
"""librdkafka's message.max.bytes, unless the settings say otherwise."""
FULL_S = 0.05
ABORT_FLUSH_S = 1.0
"""How long an abort waits for outputs to be sent. To abort what the broker has not seen begin, as
it still completes the transaction before, is an error that ends the producer."""
INCOMPLETE = -199
"""librdkafka's "bad message" code, which it never gives for a commit: what is finished does not fit
into the maps. The engine tries again when more is."""

_log = logging.getLogger("waterclock.burrow")


class KafkaTransactions(KafkaSource):
    """A source whose commits are transactions of a producer.

    `transactional_id` must differ between processes that live at the same time, and stay the same
    over the lives of one: then a new life ends what the old one left open. `producer` settings are
    added to the connection settings of the consumer.
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        topics: Sequence[str],
        *,
        transactional_id: str,
        producer: Mapping[str, object] | None = None,
        map_units_max: int = 4_095,
        map_text: MapText = "base32768",
    ) -> None:
        if settings.get("group.protocol", "classic") != "classic":
            raise BadConfig("group.protocol", "must be classic: partitions come and go together")
        strategy = str(settings.get("partition.assignment.strategy", "range"))
        if "cooperative" in strategy:
            raise BadConfig("partition.assignment.strategy", "must be an eager one: range")
        isolated = {"isolation.level": "read_committed", "partition.assignment.strategy": strategy}
        super().__init__(
            {**settings, **isolated}, topics, map_units_max=map_units_max, map_text=map_text
        )
        connection = {
            name: value for name, value in settings.items() if name.startswith(CONNECTION)
        }
        self._producer_settings = {
            "queue.buffering.max.messages": 1_000_000,
            **connection,
            **(producer or {}),
            "transactional.id": transactional_id,
        }
        size_max = self._producer_settings.get("message.max.bytes", OUTPUT_BYTES_MAX)
        self._output_bytes_max = int(str(size_max))
        timeout_ms = self._producer_settings.get("transaction.timeout.ms", TRANSACTION_MS_MAX)
        self.commit_s_max = int(str(timeout_ms)) / 1_000
        """After this a broker aborts what is open."""
        self._producer: Producer
        self._has_begun = False
        """Whether a transaction is open."""
        self._is_spoilt = False
        """Whether outputs are missing in it."""
        self._is_revoking = False
        self._is_rewinding = False
        self._seals = 0

    # On the loop

    @property
    def is_sealed(self) -> bool:
        """Whether a transaction is being committed."""
        return self._seals > 0

    def check(self, outputs: Sequence[Output]) -> None:
        """Raise if a message is larger than the client takes. In the midst of a transaction it
        would spoil it, and the next one, and all."""
        for output in outputs:
            size = len(output.value or b"") + len(output.key or b"")
            if size > self._output_bytes_max:
                limit = f"message.max.bytes = {self._output_bytes_max}"
                raise BadInput(f"an output for {output.topic} has {size} bytes: {limit}")

    def emit(self, outputs: Sequence[Output]) -> None:
        """Add messages to the transaction."""
        try:
            if not self._has_begun:
                self._producer.begin_transaction()
                self._has_begun = True
            for output in outputs:
                self._produce(output)
            self._producer.poll(0)
        except KafkaException as error:
            # Some are missing in it now: it must not be committed.
            self._is_spoilt = True
            _log.warning("output_failed error=%s", error)

    def _produce(self, output: Output) -> None:
        while True:
            try:
                self._producer.produce(
                    output.topic, output.value, output.key, headers=[*output.headers]
                )
                return
            except BufferError:
                self._producer.poll(FULL_S)

    def commit(
        self, commits: Mapping[TopicPartition, Commit]
    ) -> "asyncio.Future[dict[TopicPartition, int]]":
        """Commit the transaction with these offsets in it."""
        self._seals += 1
        answer = super().commit(commits)
        answer.add_done_callback(self._unseal)
        return answer

    def _unseal(self, answer: "asyncio.Future[dict[TopicPartition, int]]") -> None:
        self._seals -= 1

    # On the thread

    def _begin(self) -> None:
        try:
            self._producer = Producer({**self._producer_settings, "error_cb": self._noticed})
            self._producer.init_transactions(TRANSACTION_S)
        except KafkaException as error:
            raise SourceFailed(f"Kafka: the transactions cannot begin: {error}") from error
        super()._begin()

    def _end(self) -> None:
        if hasattr(self, "_producer"):
            self._abort()
        super()._end()

    def _commit_ours(
        self, commits: Mapping[TopicPartition, Commit], stamped: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        if self._failure is not None or len(self._ours(stamped)) < len(commits):
            return dict.fromkeys(commits, NOT_OURS)
        if not all(commit.is_whole for commit in commits.values()):
            return dict.fromkeys(commits, INCOMPLETE)
        error = self._commit_transaction(commits)
        if error is None:
            return dict.fromkeys(commits, 0)
        _log.warning("transaction_failed code=%s text=%s", error.name(), error.str())
        if error.fatal() or not self._abort():
            self._failure = SourceFailed(f"Kafka: {error.str()}")
        elif self._is_revoking or self._is_closing:
            # What it held is gone with it: nothing that follows may commit these places.
            self._forget([TopicPartition(*name) for name in self._epochs])
        else:
            self._rewind()
        return dict.fromkeys(commits, NOT_OURS)

    def _commit_transaction(self, commits: Mapping[TopicPartition, Commit]) -> KafkaError | None:
        """Commit; return why that failed, if it did."""
        producer = self._producer
        error: KafkaError | None = None
        if self._is_spoilt:
            return KafkaError(KafkaError._STATE, "outputs could not be produced")
        has_sent = False
        for _ in range(TRIES):
            try:
                if not self._has_begun:
                    producer.begin_transaction()
                    self._has_begun = True
                if not has_sent:  # once it is being committed, that is all that may be asked again
                    member = self._consumer.consumer_group_metadata()
                    producer.send_offsets_to_transaction(places_of(commits), member, TRANSACTION_S)
                    has_sent = True
                producer.commit_transaction(TRANSACTION_S)
            except KafkaException as raised:
                error = problem = _problem_of(raised)
                if problem.fatal() or problem.txn_requires_abort() or not problem.retriable():
                    return error
            else:
                self._has_begun = False
                return None
        return error

    def _abort(self) -> bool:
        """Give up the open transaction; say whether the producer can go on."""
        self._is_spoilt = False
        if not self._has_begun:
            return True
        self._has_begun = False
        try:
            self._producer.flush(ABORT_FLUSH_S)
            self._producer.abort_transaction(TRANSACTION_S)
        except KafkaException as error:
            _log.warning("abort_failed error=%s", error)
            return False
        return True

    def _rewind(self) -> None:
        """Begin again where the last transaction that was committed ended."""
        names = [TopicPartition(*name) for name in self._epochs]
        self._is_rewinding = True
        try:
            self._forget(names)
            self._tell_lost(names)
            self._begin_with([KafkaPartition(*name) for name in names])
        finally:
            self._is_rewinding = False

    def _poll(self, count: int, timeout_s: float) -> list[Record]:
        # While calls are served in the midst of a rewind: a rebalance that ran now would take away
        # partitions that are begun with right after it.
        return [] if self._is_rewinding else super()._poll(count, timeout_s)

    def _on_revoke(self, consumer: Consumer, places: list[KafkaPartition]) -> None:
        self._is_revoking = True
        try:
            super()._on_revoke(consumer, places)
        finally:
            self._is_revoking = False
        # What was not committed with them is done again by the member that has them next.
        self._abort_or_fail()

    def _on_lost(self, consumer: Consumer, places: list[KafkaPartition]) -> None:
        super()._on_lost(consumer, places)
        self._abort_or_fail()

    def _abort_or_fail(self) -> None:
        if not self._abort():
            self._failure = SourceFailed("Kafka: a transaction could not be aborted")


def _problem_of(error: KafkaException) -> KafkaError:
    problem: KafkaError = error.args[0]
    return problem
