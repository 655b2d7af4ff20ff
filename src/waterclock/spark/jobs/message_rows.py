"""Rows of any table as messages: which column is what, and what the types become.

Without a word, columns of the names a topic has are taken: value, key, headers, message_id, and
due_time, due, due_ms or at. A table without `value` is sent whole, each row as a JSON object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window

from waterclock.model.errors import BadInput
from waterclock.spark.jobs.tables import BROKEN, first_line

DUE_NAMES = ("due_time", "due", "due_ms", "at")
MILLIS = r"^\s*[0-9]{10,15}\s*$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Expressions of Spark SQL over the columns of the table; None: by name."""

    value: str | None = None
    key: str | None = None
    due: str | None = None
    message_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def message_rows(table: DataFrame, mapped: Mapped) -> DataFrame:
    """Return value, key, headers, message_id, due_time; `broken`, the text of a row that could not
    be read; and `repeat`, the how-manieth row of its id it is."""
    from pyspark.errors import AnalysisException, ParseException

    names = {name.lower(): name for name in table.columns}
    has_id = mapped.message_id is not None or "message_id" in names
    try:
        rows = table.select(
            _value(table, names, mapped).alias("value"),
            _bytes(_named(table, names, mapped.key, "key")).alias("key"),
            _headers(table, names, mapped).alias("headers"),
            _bytes(_named(table, names, mapped.message_id, "message_id")).alias("message_id"),
            _due(table, names, mapped).alias("due_time"),
            _broken(table, names).alias("broken"),
        )
        # Asked for now, while we know what was typed.
        rows.schema  # noqa: B018
    except (AnalysisException, ParseException) as error:
        raise BadInput(f"schedule: {first_line(error)}") from error
    if not has_id:
        return rows.withColumn("repeat", F.lit(1))
    # Which of several is kept must not depend on how rows are divided.
    same = Window.partitionBy("message_id").orderBy("due_time", "value", "key")
    count = F.when(F.col("message_id").isNotNull(), F.row_number().over(same)).otherwise(1)
    return rows.withColumn("repeat", count)


def _value(table: DataFrame, names: Mapping[str, str], mapped: Mapped) -> Column:
    if mapped.value is not None or "value" in names:
        return _bytes(_named(table, names, mapped.value, "value"))
    taken = {"key", "headers", "message_id", BROKEN}
    rest = [name for lower, name in names.items() if lower not in taken]
    return F.to_json(F.struct(*[table[f"`{name}`"] for name in rest])).cast("binary")


def _named(
    table: DataFrame, names: Mapping[str, str], expression: str | None, name: str
) -> tuple[Column, T.DataType]:
    """Return a column by what was said of it, or by its name; null if there is neither."""
    if expression is None and name not in names:
        return F.lit(None), T.NullType()
    column = F.expr(expression) if expression is not None else F.col(f"`{names[name]}`")
    return column, table.select(column.alias("it")).schema["it"].dataType


def _bytes(found: tuple[Column, T.DataType]) -> Column:
    """Return a column as bytes: text as UTF-8, what has parts as JSON, the rest as it is shown."""
    column, kind = found
    if isinstance(kind, T.BinaryType):
        return column
    if isinstance(kind, T.StructType | T.ArrayType | T.MapType | T.VariantType):
        return F.to_json(column).cast("binary")
    return column.cast("string").cast("binary")


def _due(table: DataFrame, names: Mapping[str, str], mapped: Mapped) -> Column:
    name = next((each for each in DUE_NAMES if each in names), None)
    if mapped.due is None and name is None:
        raise BadInput(
            f"schedule: no column is named {', '.join(DUE_NAMES[:-1])} or {DUE_NAMES[-1]}: say when"
            " rows are due with --due, an expression of SQL"
        )
    column, kind = _named(table, names, mapped.due, name or "")
    if isinstance(kind, T.TimestampType):
        return column
    if isinstance(kind, T.TimestampNTZType | T.DateType):
        return column.cast("timestamp")
    if isinstance(kind, T.NumericType):
        return F.timestamp_millis(column.cast("bigint"))
    text = column.cast("string")
    millis = F.timestamp_millis(
        F.try_to_number(F.trim(text), F.lit("999999999999999")).cast("bigint")
    )
    return F.when(text.rlike(MILLIS), millis).otherwise(F.try_to_timestamp(F.trim(text)))


def _headers(table: DataFrame, names: Mapping[str, str], mapped: Mapped) -> Column:
    given = [
        F.struct(F.lit(name).alias("key"), _bytes(_named(table, names, text, name)).alias("value"))
        for name, text in mapped.headers.items()
    ]
    none = F.array().cast("array<struct<key:string,value:binary>>")
    own = none
    if "headers" in names:
        column, kind = _named(table, names, None, "headers")
        if not isinstance(kind, T.MapType):
            raise BadInput(
                f"schedule: column headers is {kind.simpleString()}, not a map<string,binary>"
            )
        own = F.coalesce(F.map_entries(column.cast("map<string,binary>")), none)
    said = F.array(*given) if given else none
    kept = F.filter(said, lambda pair: pair["value"].isNotNull())
    return F.map_from_entries(F.concat(own, kept))


def _broken(table: DataFrame, names: Mapping[str, str]) -> Column:
    return F.col(f"`{BROKEN}`") if BROKEN in names else F.lit(None).cast("string")
