"""Reading files and queries as tables, cut into tasks in the same way on every machine.

Spark sizes its cuts by the number of cores. A job that is to be resumed on another machine must
find the same rows in the same task, so the cut is given here.
"""

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}
CUTS_MIN = "16"
BROKEN = "_corrupt_record"


def read_table(
    spark: "SparkSession", *, source: str | None, sql: str | None, format_name: str | None,
    schema: str | None,
) -> "DataFrame":  # fmt: skip
    """Return the rows of files or of a query; raise BadInput in a line if they cannot be read."""
    from pyspark.errors import AnalysisException, ParseException

    spark.conf.set("spark.sql.files.minPartitionNum", CUTS_MIN)
    try:
        if sql is not None:
            return spark.sql(sql)
        assert source is not None
        kind = format_of(source, format_name)
        reader = spark.read.format(kind).options(**_OPTIONS[kind])
        if schema is not None:
            reader = reader.schema(f"{schema}, {BROKEN} string" if kind != "parquet" else schema)
        return reader.load(source)
    except (AnalysisException, ParseException) as error:
        raise BadInput(f"{'--sql' if sql else source}: {first_line(error)}") from error


_OPTIONS: dict[str, dict[str, str]] = {
    "parquet": {},
    "csv": {"header": "true", "enforceSchema": "false", "columnNameOfCorruptRecord": BROKEN},
    "json": {"columnNameOfCorruptRecord": BROKEN},
}


def format_of(source: str, given: str | None) -> str:
    """Return the format of files, by what was said or by how their name ends."""
    ending = given or PurePosixPath(source.rstrip("/*")).suffix.removeprefix(".")
    if ending == "gz":
        ending = PurePosixPath(PurePosixPath(source).stem).suffix.removeprefix(".")
    if ending.lower() not in FORMATS:
        raise BadInput(
            f"{source}: say what it is with --format: {', '.join(sorted(set(FORMATS.values())))}"
        )
    return FORMATS[ending.lower()]


def typed(option: str, text: str, use: "Callable[[str], DataFrame]") -> "DataFrame":
    """Return what SQL that a person typed makes; raise BadInput in a line if it is wrong."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        made = use(text)
        made.schema  # noqa: B018 - a Connect session looks at SQL only when it must
    except (AnalysisException, ParseException) as error:
        raise BadInput(f"{option} {text!r}: {first_line(error)}") from error
    return made


def first_line(error: Exception) -> str:
    """Return what an error of Spark says first, without the plan below it."""
    return str(error).strip().partition("\n")[0]
