"""Partitions of Kafka topics, as a member of a consumer group.

One thread owns the client; records are made there, a poll at a time. All rebalance protocols work:
eager, cooperative (the default) and KIP-848 (`group.protocol=consumer`). A partition that is taken
away is committed in the rebalance callback, after what was begun has ended; the group waits for it.

Partitions are begun at the committed offset as we read it, together with the offset map that was
committed with it. If it cannot be read, the client finds the place alone and the map is left out:
more is done again, and nothing is lost.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from waterclock.burrow.core.config import MapText
from waterclock.burrow.core.records import Assignment, Commit, Record, TopicPartition
from waterclock.burrow.kafka.client_thread import ClientThread
from waterclock.burrow.runtime.source import NOT_OURS, Owner, SourceFailed
from waterclock.model.errors import BadConfig, Busy

CALL_S = 10.0
"""How long the broker may take to say what was committed."""
CALL_TRIES = 3
OURS = {"enable.auto.commit": False, "enable.auto.offset.store": False}
"""Settings a pool cannot do without."""
NEEDED = {"bootstrap.servers": "localhost:9092", "group.id": "billing"}
"""Settings there is no default for, each with an example."""
ALIASES = {"bootstrap.servers": "metadata.broker.list"}
USUAL = {"auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 20}
"""The client fetches 100,000 messages ahead, then not before this time is over. By default that is
a second: a pool that is faster than 100,000 a second would wait for most of it."""

TELL_S = 60.0
"""How often an error of the client is told as a warning, while it lasts."""

SLICE, SLICES = 125, 2
"""Messages made into records at a time, at least, and parts of a larger poll. The loop stands still
meanwhile (0.1 ms), as only one thread runs Python; between slices it can go on. More of them would
starve a pool whose loop is never idle: it lets go of Python every 5 ms only."""

_log = logging.getLogger("waterclock.burrow")


class KafkaSource:
    """Reads topics in a group. `settings` are those of librdkafka; `group.id` and
    `bootstrap.servers` are needed. A group that has committed nothing begins at the first message
    there is (`auto.offset.reset`: earliest, where librdkafka's own default is latest). The broker
    takes `map_units_max` characters with a commit (offset.metadata.max.bytes less one); for one
    that counts bytes `map_text` is "base64"."""

    def __init__(
        self,
        settings: Mapping[str, object],
        topics: Sequence[str],
        *,
        map_units_max: int = 4_095,
        map_text: MapText = "base32768",
    ) -> None:
        if isinstance(topics, str) or not topics:
            raise BadConfig("topics", f"must be a list with at least one topic, not {topics!r}")
        for name, example in NEEDED.items():
            if not settings.get(name) and not settings.get(ALIASES.get(name, name)):
                raise BadConfig(name, f"is missing in the settings: such as {example!r}")
        for name, value in OURS.items():
            if settings.get(name, value) != value:
                raise BadConfig(name, "is not for a pool: it commits itself what is done")
        self._settings = {**USUAL, **settings, **OURS}
        if self._settings.get("group.protocol", "classic") == "classic":
            self._settings.setdefault("partition.assignment.strategy", "cooperative-sticky")
        self._topics = list(topics)
        self.map_units_max = map_units_max
        self.map_text: MapText = map_text
        self._epoch = 0
        self._epochs: dict[tuple[str, int], int] = {}
        """Which partitions are ours, each with its epoch. Changed on the thread only."""
        self._failure: SourceFailed | None = None
        self._said_at: dict[int, float] = {}
        self._is_closing = False
        self._owner: Owner
        self._consumer: Consumer
        self._thread: ClientThread | None = None
        self._polling: asyncio.Future[list[Record]] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._topics)}, {len(self._epochs)} partitions>"

    @property
    def _is_incremental(self) -> bool:
        strategies = str(self._settings.get("partition.assignment.strategy", ""))
        return self._settings.get("group.protocol") == "consumer" or "cooperative" in strategies

    # On the loop

    async def open(self, owner: Owner) -> None:
        """Join the group; again after `close`, for the next pool."""
        if self._thread is not None:
            raise Busy(f"{self!r} is open: each pool needs a source of its own")
        self._is_closing, self._failure = False, None
        self._epochs.clear()
        self._owner = owner
        self._thread = ClientThread("burrow-kafka")
        await self._thread.call(self._begin)

    async def poll(self, count: int, timeout_s: float) -> list[Record]:
        """Return what there is; wait for the first record only."""
        assert self._thread is not None
        self._polling = self._thread.call(self._poll, count, timeout_s)
        return await asyncio.shield(self._polling)

    def pause(self, names: Sequence[TopicPartition]) -> None:
        """Fetch these no more."""
        assert self._thread is not None
        self._thread.call(self._hold, self._stamped(names), True)

    def resume(self, names: Sequence[TopicPartition]) -> None:
        """Fetch these again."""
        assert self._thread is not None
        self._thread.call(self._hold, self._stamped(names), False)

    def commit(
        self, commits: Mapping[TopicPartition, Commit]
    ) -> "asyncio.Future[dict[TopicPartition, int]]":
        """Commit offsets, each with its map."""
        assert self._thread is not None
        return self._thread.call(self._commit_ours, dict(commits), self._stamped(commits))

    async def log_ends(self) -> Mapping[TopicPartition, int]:
        """Return the ends the last fetches told of."""
        assert self._thread is not None
        return await self._thread.call(self._read_ends)

    async def close(self) -> None:
        """Leave the group."""
        self._is_closing = True
        if self._thread is not None:
            if self._polling is not None:
                # It may be in a callback, which serves calls: the client cannot be closed in there.
                await asyncio.wait([self._polling])
            await self._thread.call(self._end)
            self._thread.end()
            self._thread = None

    def _stamped(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return which of these are ours at the moment, and since when."""
        return {name: self._epochs[name] for name in names if name in self._epochs}

    # On the thread

    def _begin(self) -> None:
        try:
            self._consumer = Consumer({**self._settings, "error_cb": self._noticed})
        except KafkaException as error:
            raise SourceFailed(f"Kafka: {error.args[0].str()}") from error
        self._consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _end(self) -> None:
        if hasattr(self, "_consumer"):
            self._consumer.close()

    def _noticed(self, error: KafkaError) -> None:
        if error.fatal():
            self._failure = SourceFailed(f"Kafka: {error.str()}")
        # Once in a while for each: a pool that waits for a broker or a topic should say so.
        is_news = monotonic() - self._said_at.get(error.code(), -TELL_S) >= TELL_S
        if is_news:
            self._said_at[error.code()] = monotonic()
        level = logging.WARNING if is_news else logging.INFO
        _log.log(level, "kafka_error code=%s text=%s", error.name(), error.str())

    def _poll(self, count: int, timeout_s: float) -> list[Record]:
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            return []
        # `consume` waits until it has all it is asked for, so it is asked for one if there is none.
        # A slice is made into records before the next call, which may run a rebalance. None comes
        # out of a call after a rebalance that was read before it: with no time to wait, a call ends
        # before anything of the new assignment can be there.
        slice_max = max(SLICE, -(-count // SLICES))
        messages = self._consumer.consume(min(count, slice_max), 0)
        if not messages:
            messages = self._consumer.consume(1, timeout_s)
        found = self._records(messages)
        left = count - len(messages)
        while messages and left > 0 and self._failure is None:
            messages = self._consumer.consume(min(left, slice_max), 0)
            found += self._records(messages)
            left -= len(messages)
        if self._failure is not None:
            raise self._failure
        return found

    def _records(self, messages: Iterable[Message]) -> list[Record]:
        # One text for the topic of all, where each message brings its own.
        places = {name: (name[0], epoch) for name, epoch in self._epochs.items()}
        found: list[Record] = []
        for message in messages:
            error = message.error()
            if error is not None:
                self._noticed(error)
                continue
            partition = message.partition()
            place = places.get((message.topic(), partition))  # type: ignore[arg-type]
            if place is None:  # it went while this was on its way
                continue
            topic, epoch = place
            found.append(
                Record(
                    topic,
                    partition,  # type: ignore[arg-type]
                    message.offset(),  # type: ignore[arg-type]
                    message.key(),
                    message.value(),
                    message.headers() or (),  # type: ignore[arg-type]
                    message.timestamp()[1],
                    epoch,
                )
            )
        return found

    def _ours(self, stamped: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        return [name for name, epoch in stamped.items() if self._epochs.get(name) == epoch]

    def _hold(self, stamped: Mapping[TopicPartition, int], is_pause: bool) -> None:
        # One of an earlier assignment must not pause the present one: nobody would resume it.
        places = [KafkaPartition(*name) for name in self._ours(stamped)]
        if places and not self._is_closing:
            try:
                (self._consumer.pause if is_pause else self._consumer.resume)(places)
            except KafkaException as error:  # better to end than to stand still for ever
                self._failure = SourceFailed(f"Kafka: partitions cannot be paused: {error}")

    def _commit_ours(
        self, commits: Mapping[TopicPartition, Commit], stamped: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        codes = dict.fromkeys(commits, NOT_OURS)
        ours = {name: commits[name] for name in self._ours(stamped)}
        if ours:
            codes.update(self._commit(ours))
        return codes

    def _commit(self, commits: Mapping[TopicPartition, Commit]) -> dict[TopicPartition, int]:
        try:
            answers = self._consumer.commit(offsets=places_of(commits), asynchronous=False)
        except KafkaException as error:
            return dict.fromkeys(commits, code_of(error))
        codes = dict.fromkeys(commits, 0)
        for place in answers or ():
            if place.error is not None:
                codes[TopicPartition(place.topic, place.partition)] = place.error.code()
        return codes

    def _read_ends(self) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for name in [] if self._is_closing else list(self._epochs):
            try:
                ends = self._consumer.get_watermark_offsets(KafkaPartition(*name), cached=True)
            except KafkaException:  # it is not known: no reason to end
                continue
            if ends is not None and ends[1] >= 0:
                found[TopicPartition(*name)] = ends[1]
        return found

    # In callbacks of the client, on the thread too

    def _on_assign(self, consumer: Consumer, places: list[KafkaPartition]) -> None:
        if not self._is_closing:
            self._begin_with(places)

    def _begin_with(self, places: list[KafkaPartition]) -> None:
        known = self._committed(places)
        if self._is_incremental:
            self._consumer.incremental_assign(known)
        else:
            self._consumer.assign(known)
        self._epoch += 1
        assignments = []
        # One time for all of them: the group waits, and a broker that is away is away for many.
        deadline = monotonic() + CALL_S
        for place in known:
            name = TopicPartition(place.topic, place.partition)
            self._epochs[name] = self._epoch
            offset = place.offset if place.offset >= 0 else None
            text = place.metadata or ""
            end = self._log_end(place, deadline) if text else None
            assignments.append(Assignment(name, self._epoch, offset, text, end))
        if known:
            self._consumer.resume(known)
        self._tell_assigned(assignments)

    def _tell_assigned(self, assignments: Sequence[Assignment]) -> None:
        async def tell() -> None:
            self._owner.assigned(assignments)

        assert self._thread is not None
        self._thread.wait_for(tell())

    def _committed(self, places: list[KafkaPartition]) -> list[KafkaPartition]:
        """Return the places with what was committed for them; bare if nobody can tell."""
        for _ in range(CALL_TRIES if places else 0):
            try:
                found = self._consumer.committed(places, timeout=CALL_S)
            except KafkaException as error:
                _log.warning("committed_unknown error=%s", error)
                continue
            return [
                each if each.error is None else KafkaPartition(*_name_of(each)) for each in found
            ]
        return [KafkaPartition(*_name_of(each)) for each in places]

    def _log_end(self, place: KafkaPartition, deadline: float) -> int | None:
        left_s = max(deadline - monotonic(), 0.01)
        try:
            ends = self._consumer.get_watermark_offsets(
                KafkaPartition(*_name_of(place)), timeout=left_s
            )
        except KafkaException as error:
            _log.warning("log_end_unknown error=%s", error)
            return None
        return None if ends is None else ends[1]

    def _on_revoke(self, consumer: Consumer, places: list[KafkaPartition]) -> None:
        names = [_name_of(place) for place in places]
        if not self._is_closing:
            assert self._thread is not None
            self._thread.wait_for(self._owner.revoke(names))
        self._forget(names)

    def _on_lost(self, consumer: Consumer, places: list[KafkaPartition]) -> None:
        names = [_name_of(place) for place in places]
        self._forget(names)
        if not self._is_closing:
            self._tell_lost(names)

    def _tell_lost(self, names: Sequence[TopicPartition]) -> None:
        async def tell() -> None:
            self._owner.lost(names)

        assert self._thread is not None
        self._thread.wait_for(tell())

    def _forget(self, names: Iterable[TopicPartition]) -> None:
        for name in names:
            self._epochs.pop(name, None)


def _name_of(place: KafkaPartition) -> TopicPartition:
    return TopicPartition(place.topic, place.partition)


def places_of(commits: Mapping[TopicPartition, Commit]) -> list[KafkaPartition]:
    """Return commits as the client wants them."""
    return [
        KafkaPartition(*name, commit.offset, commit.metadata) for name, commit in commits.items()
    ]


def code_of(error: KafkaException) -> int:
    code: int = error.args[0].code()
    return code
