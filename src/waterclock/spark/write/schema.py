"""The columns a write takes, and what becomes of them: messages as the node takes them, whole
columns at a time, and the rows that cannot be messages, each with its reason.

Only what is wrong makes an object here. What is checked is what a node would refuse by the batch,
so that one bad row costs no other; what else it refuses is found by `sender.py`.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.log.schema import HEADERS
from waterclock.model.errors import BadInput
from waterclock.spark.schemas import TIMESTAMP

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

RESERVED = "wc-dlq-"
"""What headers of such names say, only the node says; but in dead letters, which a job may write
as the node does."""
DEAD_LETTERS = ".dlq"
DERIVED_ID_BYTES = 32
SHOWN_BYTES = 40

CONTENT = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("due_ms", pa.int64()),
        ("partition", pa.int32()),
    ]
)
"""What a row says, in the order its hash is taken. Changing it changes all derived ids."""

_TAKEN = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "message_id": ("binary", "string"),
    "headers": ("map<string,binary>", "map<string,string>"),
    "due_time": ("timestamp",),
    "due_ms": ("bigint",),
    "partition": ("int", "smallint", "tinyint"),
}
_READ_ONLY = {"offset", "append_time", "fire_time", "kind"}
_HINTS = {
    "due_time": "a timestamp_ntz names no moment: cast it to timestamp",
    "headers": "use map() or map_from_entries()",
    "value": "use to_json(struct(...)) or cast it",
}


class BadColumn(BadInput):
    """A column of a write is unknown, missing, or of a type that is not taken."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"column {column}: {problem}")
        self.field = column


class BadRow(BadInput):
    """A row that cannot be a message; says which, and why."""

    def __init__(self, *, task: int, row: int, reason: str) -> None:
        super().__init__(
            f"row {row} of task {task} cannot be written: {reason}. Mend it, or leave such rows "
            f"out with .option('onBadRow', 'skip')"
        )
        self.reason = reason


class StructField(Protocol):
    """A field of Spark's schema, as much as is looked at."""

    name: str
    dataType: Any


def check_columns(fields: "Sequence[StructField]") -> None:
    """Raise BadColumn unless rows with these columns can be written."""
    names = [field.name.lower() for field in fields]
    for name, field in zip(names, fields, strict=True):
        if name not in _TAKEN:
            raise BadColumn(repr(field.name), f"is not one a write takes; {_hint(name)}")
        if names.count(name) > 1:
            raise BadColumn(name, "is there twice")
        given = field.dataType.simpleString().split(" collate ")[0]
        if given not in _TAKEN[name]:
            hint = f": {_HINTS[name]}" if name in _HINTS else ""
            raise BadColumn(name, f"must be {' or '.join(_TAKEN[name])}, not {given}{hint}")
    if "value" not in names:
        raise BadColumn("value", "is missing: what is the message to say?")
    if "due_time" in names and "due_ms" in names:
        raise BadColumn("due_ms", "does not go with due_time: give one of them")


def _hint(name: str) -> str:
    if name in _READ_ONLY:
        return "the node decides it: drop it"
    near = get_close_matches(name, _TAKEN, n=1, cutoff=0.6)
    taken = f"those are {', '.join(_TAKEN)}"
    return f"did you mean {near[0]}? ({taken})" if near else taken


class Problem(NamedTuple):
    """What is wrong with a row."""

    row: int
    """In its batch."""
    reason: str


class Rows(NamedTuple):
    """Rows of one batch, ready to be sent but for their ids."""

    content: pa.RecordBatch
    ids: pa.BinaryArray | None
    """As the user gave them; null where an id is to be derived. None: all are."""

    def keep(self, mask: Bools) -> "Rows":
        """Return the rows where the mask is true."""
        kept = pa.array(mask)
        return Rows(self.content.filter(kept), None if self.ids is None else self.ids.filter(kept))


def rows_of(batch: pa.RecordBatch) -> Rows:
    """Return a batch from Spark in the columns of a message."""
    columns = {name.lower(): column for name, column in zip(batch.schema.names, batch, strict=True)}
    if "due_time" in columns:
        columns["due_ms"] = _due_ms(columns.pop("due_time"))
    content = [
        _cast(columns[field.name], field)
        if field.name in columns
        else pa.nulls(batch.num_rows, field.type)
        for field in CONTENT
    ]
    ids = columns.get("message_id")
    ids = None if ids is None else _cast(ids, pa.field("message_id", pa.binary()))
    return Rows(pa.RecordBatch.from_arrays(content, schema=CONTENT), ids)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise BadColumn(field.name, str(error)) from error


def _due_ms(column: pa.Array) -> pa.Array:
    """Return times as milliseconds, rounded up: nothing may be early."""
    micros = _cast(column, pa.field("due_time", TIMESTAMP)).cast(pa.int64())
    cut = pc.divide(micros, 1_000)  # towards zero
    was_cut_down = pc.greater(micros, pc.multiply(cut, 1_000))
    return pc.add(cut, was_cut_down.cast(pa.int64()))


def problems_of(
    rows: Rows, *, topic: str, message_bytes_max: int, partitions: int | None
) -> Iterator[Problem]:
    """Yield what is wrong with rows: at most one problem each, in no order."""
    found: dict[int, str] = {}
    content = rows.content
    checks = (
        _bad_sizes(rows, message_bytes_max),
        _bad_ids(rows.ids),
        _bad_dues(content.column("due_ms")),
        _bad_headers(content.column("headers"), may_be_dead=topic.endswith(DEAD_LETTERS)),
        _bad_partitions(content.column("partition"), partitions),
    )
    for problems in checks:
        for row, reason in problems:
            found.setdefault(row, reason)
    for row, reason in found.items():
        yield Problem(row, reason + _named(content, row))


def _named(content: pa.RecordBatch, row: int) -> str:
    key = content.column("key")[row].as_py()
    return "" if key is None else f" (its key is {key[:SHOWN_BYTES]!r})"


def sizes_of(rows: Rows) -> Int64s:
    """Return how large the node will find each message."""
    count = rows.content.num_rows
    total = np.full(count, DERIVED_ID_BYTES, np.int64)
    if rows.ids is not None:
        given = pc.binary_length(rows.ids)
        total = np.asarray(given.fill_null(DERIVED_ID_BYTES).to_numpy()).astype(np.int64)
    for name in ("key", "value"):
        column = rows.content.column(name)
        if column.null_count < count:
            total = total + np.asarray(pc.binary_length(column).fill_null(0).to_numpy())
    headers = rows.content.column("headers")
    return total if headers.null_count == count else total + header_bytes(headers)


def header_bytes(headers: pa.MapArray) -> Int64s:
    """Return the bytes of names and values of each row's headers."""
    bounds = pair_bounds(headers)
    sums = np.zeros(len(headers.keys) + 1, np.int64)
    names = pc.binary_length(headers.keys).to_numpy(zero_copy_only=False)
    texts = pc.binary_length(headers.items).fill_null(0).to_numpy(zero_copy_only=False)
    np.cumsum(names.astype(np.int64) + texts, out=sums[1:])
    return np.asarray(sums[bounds[1:]] - sums[bounds[:-1]])


def pair_bounds(column: pa.MapArray) -> npt.NDArray[np.int32]:
    """Return where the pairs of each row begin, and where the last ones end."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def _bad_sizes(rows: Rows, limit: int) -> Iterator[Problem]:
    if rows.content.nbytes <= limit and rows.ids is None:
        return  # no row is larger than all together
    sizes = sizes_of(rows)
    for row in np.flatnonzero(sizes > limit).tolist():
        yield Problem(row, f"message bytes exceeds its limit of {limit} (got {sizes[row]})")


def _bad_ids(ids: pa.BinaryArray | None) -> Iterator[Problem]:
    if ids is not None and ids.null_count < len(ids):
        is_empty = pc.equal(pc.binary_length(ids), 0).fill_null(False)
        for row in np.flatnonzero(np.asarray(is_empty)).tolist():
            yield Problem(row, "message_id is empty; null derives one, or give at least 1 byte")


def _bad_dues(due_ms: pa.Array) -> Iterator[Problem]:
    if due_ms.null_count < len(due_ms) and pc.min(due_ms).as_py() < 0:
        for row in np.flatnonzero(np.asarray(pc.less(due_ms, 0).fill_null(False))).tolist():
            yield Problem(row, f"due time is before 1970 (got {due_ms[row].as_py()} ms)")


def _bad_headers(headers: pa.MapArray, *, may_be_dead: bool) -> Iterator[Problem]:
    if headers.null_count == len(headers):
        return
    bounds = pair_bounds(headers)
    start, end = int(bounds[0]), int(bounds[-1])
    names = headers.keys.slice(start, end - start)
    texts = headers.items.slice(start, end - start)
    is_reserved = np.asarray(pc.starts_with(names, RESERVED)) & (not may_be_dead)
    is_null = np.asarray(texts.is_null())
    for pair in np.flatnonzero(is_reserved | is_null).tolist():
        row = int(np.searchsorted(bounds, pair + start, side="right")) - 1
        name = names[pair].as_py()[:SHOWN_BYTES]
        if is_reserved[pair]:
            yield Problem(row, f"headers: {name!r} is the node's own, as all of {RESERVED}*")
        else:
            yield Problem(row, f"headers: {name!r} is null; give bytes, or leave it out")


def _bad_partitions(partition: pa.Array, partitions: int | None) -> Iterator[Problem]:
    if partition.null_count == len(partition) or partitions is None:
        return
    is_bad = pc.or_(pc.less(partition, 0), pc.greater_equal(partition, partitions))
    for row in np.flatnonzero(np.asarray(is_bad.fill_null(False))).tolist():
        got = partition[row].as_py()
        yield Problem(row, f"partition must be from 0 to {partitions - 1} (got {got})")
