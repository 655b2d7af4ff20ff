"""The columns of each view, for Spark and for Arrow, and the projection that works.

Spark's `select` does not reach a Python source, so a reader learns what to leave out from the
schema it is given: any of the view's columns, in any order, with the types they have. Arrow's types
are the only ones Spark takes for them; it compares names, order, types and nullability.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from waterclock.spark.options import BadOption, View

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.binary())


class Column(NamedTuple):
    """One column of a view."""

    name: str
    spark: str
    """Its type as Spark writes it."""
    arrow: pa.DataType
    may_be_null: bool = True


_PARTITION = Column("partition", "int", pa.int32(), False)
_OFFSET = Column("offset", "bigint", pa.int64(), False)
_MESSAGE = (
    Column("message_id", "binary", pa.binary(), False),
    Column("key", "binary", pa.binary()),
    Column("value", "binary", pa.binary()),
    Column("headers", "map<string,binary>", HEADERS),
)
_DUE = Column("due_time", "timestamp", TIMESTAMP)
_DELIVERED = (
    _PARTITION,
    _OFFSET,
    *_MESSAGE,
    Column("append_time", "timestamp", TIMESTAMP, False),
    _DUE,
    Column("fire_time", "timestamp", TIMESTAMP),
)

COLUMNS: dict[View, tuple[Column, ...]] = {
    "delivered": _DELIVERED,
    "all": (*_DELIVERED, Column("kind", "string", pa.string(), False)),
    "scheduled": (
        _PARTITION,
        _OFFSET,
        *_MESSAGE,
        _DUE,
        Column("append_time", "timestamp", TIMESTAMP),
    ),
    "dlq": (
        _PARTITION,
        _OFFSET,
        *_MESSAGE,
        Column("group", "string", pa.string()),
        Column("reason", "string", pa.string()),
        Column("attempts", "int", pa.int32()),
        Column("origin_partition", "int", pa.int32()),
        Column("origin_offset", "bigint", pa.int64()),
        Column("dead_lettered_time", "timestamp", TIMESTAMP),
    ),
}

_EXTRA = (Column("value_bytes", "int", pa.int32()),)
"""Columns of the log's views that are made only if they are asked for by name: the length of a
value without the value, null for a tombstone."""
EXTRA_COLUMNS: dict[View, tuple[Column, ...]] = {"delivered": _EXTRA, "all": _EXTRA}


def ddl_of(view: View) -> str:
    """Return the schema of a view as Spark reads it."""
    return ", ".join(f"`{column.name}` {column.spark}" for column in COLUMNS[view])


class StructField(Protocol):
    """A field of Spark's schema, as much as is looked at: so no Spark is imported here."""

    name: str
    dataType: Any
    nullable: bool


def arrow_schema(view: View, fields: Sequence[StructField]) -> pa.Schema:
    """Return what Spark expects for the columns it asks for; raise BadOption if we have not them.

    They are the view's own, or those the user named with `.schema(...)`.
    """
    columns = {each.name: each for each in (*COLUMNS[view], *EXTRA_COLUMNS.get(view, ()))}
    found = []
    for wanted in fields:
        column = columns.get(wanted.name)
        if column is None:
            raise BadOption(
                "schema", f"view {view} has no column {wanted.name!r}, only {', '.join(columns)}"
            )
        given = wanted.dataType.simpleString()
        if given != column.spark:
            raise BadOption(
                "schema", f"column {column.name} is {column.spark}, not {given}: cast it afterwards"
            )
        if column.may_be_null and not wanted.nullable:
            raise BadOption("schema", f"column {column.name} may be null: leave out its NOT NULL")
        found.append(pa.field(column.name, column.arrow, nullable=wanted.nullable))
    return pa.schema(found)
