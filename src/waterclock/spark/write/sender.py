"""A task's way to the node: batches sent a few at a time, and calls of the write registry retried.

The client lives on a loop of its own thread (`client/loop_thread.py`); the task's thread prepares
the next rows while some are on their way. At most `in_flight` chunks of `CHUNK_BYTES` are, so
memory is bounded whatever Spark hands over. A node that restarts is waited for, or another is asked
if there are several: rows have ids, and calls of the write registry may be repeated.

A node refuses a batch as a whole. What is wrong with which row is then found by what the refusal
says (a field and its limit: rows are measured here, since halving would take two requests for each
bad row of a batch full of them), or by halves; rows are named by their number in the task.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.client.client import Client
from waterclock.client.consumer.fetch import Fetched
from waterclock.client.encryption import Keys
from waterclock.client.loop_thread import LoopThread
from waterclock.client.producer.arrow import ArrowReceipt
from waterclock.client.retry import is_transient
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import (
    BadBatch,
    BadInput,
    LimitExceeded,
    UnknownTopic,
    WaterclockError,
)
from waterclock.model.units import KIB, MIB, SECOND_MS
from waterclock.model.views import WriteBegun
from waterclock.security.credential import Credential
from waterclock.spark.write.schema import Rows, header_bytes, pair_bounds, sizes_of

Int64s = npt.NDArray[np.int64]
Result = TypeVar("Result")
OnBadRow = Callable[[int, str], None]
"""Called with a row's number in the task and what is wrong with it; may raise."""

PATIENCE_S = 60.0
"""How long a node may be away: enough for one that is started again, and recovers."""
PAUSE_S, PAUSE_S_MAX = 0.1, 2.0
CHUNK_BYTES = 512 * KIB
"""Small, so that what others publish need not wait long behind one."""
FETCH_BYTES = 16 * MIB
CONNECT_MS = 15 * SECOND_MS
RATE_SLACK_S = 0.1
"""How far a task may run ahead of its rate."""


class TaskKey(NamedTuple):
    """Which task of which write."""

    writer: str
    batch: int
    task: int


class _Where(NamedTuple):
    """The nodes that are written to, as whom, and by which keys."""

    servers: tuple[str, ...]
    credential: Credential | None = None
    keys: Keys | None = None


class _Chunk(NamedTuple):
    rows: pa.RecordBatch
    numbers: Int64s
    """Of the rows, in the task."""
    partition: int | None


class BatchSender:
    """One connection to a topic, open between `with`; for one thread."""

    def __init__(
        self,
        servers: tuple[str, ...],
        topic: str,
        *,
        credential: Credential | None = None,
        keys: Keys | None = None,
        in_flight: int = 4,
        rate_limit: int | None = None,
        on_bad_row: OnBadRow | None = None,
    ) -> None:
        self.topic = topic
        self.new = 0
        """Rows stored that were not there before."""
        self.repeated = 0
        """Rows whose ids the node knew."""
        self._where = _Where(servers, credential, keys)
        self._in_flight_max = in_flight
        self._rate_limit = rate_limit
        self._on_bad_row = on_bad_row
        self._in_flight: deque[tuple[_Chunk, Future[ArrowReceipt]]] = deque()
        self._may_send_at_s = 0.0
        self._client: Client
        self._loop_thread: LoopThread

    def __repr__(self) -> str:
        return f"<BatchSender to {self.topic}, {len(self._in_flight)} chunks on their way>"

    def __enter__(self) -> "BatchSender":
        self._client, self._loop_thread = _client_of(self._where)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for _, future in self._in_flight:
            future.cancel()
        self._in_flight.clear()

    # The write registry, and what else is asked

    def check_topic(self) -> None:
        """Raise UnknownTopicToWrite if the node says that there is no such topic."""
        try:
            self._loop_thread.run(self._client.topics.get(self.topic))
        except UnknownTopic:
            raise UnknownTopicToWrite(self.topic) from None

    def begin(self, place: TaskKey, *, create_partitions: int | None = None) -> WriteBegun:
        """Note that a task begins; make the topic if it is not there and is to be made."""
        try:
            return self._begin(place)
        except UnknownTopic:
            if create_partitions is None:
                raise UnknownTopicToWrite(self.topic) from None
        topics = self._client.topics
        self._patiently(
            lambda: topics.create(self.topic, partitions=create_partitions, if_absent=True)
        )
        return self._begin(place)

    def _begin(self, place: TaskKey) -> WriteBegun:
        return self._patiently(lambda: self._client.write_registry.begin(self.topic, *place))

    def finish(self, place: TaskKey, rows: int) -> None:
        """Note that all rows of a task are stored."""
        self._patiently(lambda: self._client.write_registry.finish(self.topic, *place, rows=rows))

    def commit(self, writer: str, batch: int) -> None:
        """Note that a batch is whole."""
        self._patiently(lambda: self._client.write_registry.commit(self.topic, writer, batch))

    def abandon(self, writer: str) -> None:
        """Have the write registry forget a writer."""
        self._patiently(lambda: self._client.write_registry.abandon(self.topic, writer))

    def partitions(self) -> int:
        """Return how many partitions the topic has."""
        topic = self._patiently(lambda: self._client.topics.get(self.topic))
        return len(topic.partitions)

    def message_bytes_max(self) -> int:
        """Return how large a message may be."""
        return self._patiently(self._client.node).message_bytes_max

    def fetch(self, partition: int, offset: int) -> Fetched:
        """Read frames of every kind."""
        return self._patiently(
            lambda: self._client.fetch(
                self.topic, partition, offset, bytes_max=FETCH_BYTES, deliverable_only=False
            )
        )

    def _patiently(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return what a call returns, repeating it while the node is away: each may be repeated."""
        gives_up_s = time.monotonic() + PATIENCE_S
        pause_s = PAUSE_S
        while True:
            try:
                return self._loop_thread.run(call())
            except WaterclockError as error:
                if not is_transient(error) or time.monotonic() + pause_s > gives_up_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    # Rows

    def send(self, rows: pa.RecordBatch, numbers: Int64s, partition: int | None) -> None:
        """Send messages; wait while enough are on their way. Raises what became of earlier ones.

        `numbers` are those of the rows in the task.
        """
        for chunk in _chunks(_Chunk(rows, numbers, partition)):
            while len(self._in_flight) >= self._in_flight_max:
                self._settle()
            self._wait_for_turn(chunk.rows.num_rows)
            self._in_flight.append((chunk, self._start(chunk)))

    def flush(self) -> None:
        """Wait until all that was sent is stored."""
        while self._in_flight:
            self._settle()

    def _start(self, chunk: _Chunk) -> Future[ArrowReceipt]:
        return self._loop_thread.begin(
            self._client.publish_arrow(self.topic, chunk.rows, partition=chunk.partition)
        )

    def _settle(self) -> None:
        """Hear of the oldest chunk."""
        chunk, future = self._in_flight.popleft()
        try:
            self._count(future.result())
        except (BadBatch, LimitExceeded) as error:
            self._sort_out(chunk, error)

    def _count(self, receipt: ArrowReceipt) -> None:
        new = int(np.count_nonzero(receipt.is_new))
        self.new += new
        self.repeated += len(receipt) - new

    def _sort_out(self, chunk: _Chunk, refusal: BadInput) -> None:
        """Find the rows that the node will not take; send the others."""
        is_bad = refused_rows(chunk.rows, refusal)
        if is_bad is None and chunk.rows.num_rows > 1:
            middle = chunk.rows.num_rows // 2
            halves = [_part(chunk, slice(0, middle)), _part(chunk, slice(middle, None))]
        else:
            if is_bad is None:
                is_bad = np.ones(1, np.bool_)
            for row in np.flatnonzero(is_bad).tolist():
                if self._on_bad_row is None:
                    raise refusal
                self._on_bad_row(int(chunk.numbers[row]), str(refusal))
            kept = chunk.rows.filter(pa.array(~is_bad))
            halves = [_Chunk(kept, chunk.numbers[~is_bad], chunk.partition)]
        for half in halves:
            if half.rows.num_rows:
                try:
                    self._count(self._start(half).result())
                except (BadBatch, LimitExceeded) as error:
                    self._sort_out(half, error)

    def _wait_for_turn(self, rows: int) -> None:
        if self._rate_limit is None:
            return
        now_s = time.monotonic()
        turn_s = max(self._may_send_at_s, now_s - RATE_SLACK_S)
        if turn_s > now_s:
            time.sleep(turn_s - now_s)
        self._may_send_at_s = turn_s + rows / self._rate_limit


class UnknownTopicToWrite(UnknownTopic):
    """There is no such topic, and the write has no option to make it."""

    def __init__(self, name: str) -> None:
        WaterclockError.__init__(
            self,
            f"there is no topic {name!r} to write to: create it first (waterclock topics create "
            f"{name}), or have it made with .option('createPartitions', 4)",
        )
        self.what, self.name = "topic", name


def _part(chunk: _Chunk, rows: slice) -> _Chunk:
    start, end, _ = rows.indices(chunk.rows.num_rows)
    return _Chunk(chunk.rows.slice(start, end - start), chunk.numbers[rows], chunk.partition)


def _chunks(chunk: _Chunk) -> list[_Chunk]:
    """Cut rows into chunks of about the size they are sent in."""
    rows = chunk.rows.num_rows
    if not rows:
        return []
    count = min(rows, -(-chunk.rows.nbytes // CHUNK_BYTES))
    step = -(-rows // count)
    return [_part(chunk, slice(start, start + step)) for start in range(0, rows, step)]


_SETTINGS = ClientSettings(
    connect_timeout_ms=CONNECT_MS, delivery_timeout_ms=int(PATIENCE_S) * SECOND_MS
)
_clients: dict[_Where, tuple[Client, LoopThread]] = {}
_clients_lock = threading.Lock()


def _client_of(where: _Where) -> tuple[Client, LoopThread]:
    """Return a client of these nodes. It stays open: Spark's workers live for many tasks, and each
    would begin with a new connection."""
    with _clients_lock:
        if where not in _clients:
            _clients[where] = _opened(where)
        return _clients[where]


def _opened(where: _Where) -> tuple[Client, LoopThread]:
    client = Client(where.servers, _SETTINGS, credential=where.credential, keys=where.keys)
    loop_thread = LoopThread(client)
    loop_thread.start()
    return client, loop_thread


Bools = npt.NDArray[np.bool_]
Measure = Callable[[pa.RecordBatch], npt.NDArray[np.integer]]


def refused_rows(rows: pa.RecordBatch, refusal: BadInput) -> Bools | None:
    """Return which messages are over the limit that a refusal names; None if that finds none."""
    if not isinstance(refusal, LimitExceeded) or refusal.limit is None:
        return None
    measure = _MEASURES.get(refusal.field or "")
    if measure is None:
        return None
    is_over = np.asarray(measure(rows) > refusal.limit)
    return is_over if bool(is_over.any()) else None


def _length(name: str) -> Measure:
    def measure(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return _filled(pc.binary_length(rows.column(name)))

    return measure


def _filled(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(column.fill_null(0).to_numpy()).astype(np.int64)


_MEASURES: dict[str, Measure] = {
    "key bytes": _length("key"),
    "message_id bytes": _length("message_id"),
    "message bytes": lambda rows: sizes_of(Rows(rows, rows.column("message_id"))),
    "headers": lambda rows: np.diff(pair_bounds(rows.column("headers"))),
    "header bytes": lambda rows: header_bytes(rows.column("headers")),
    "due_ms": lambda rows: _filled(rows.column("due_ms")),
}
