"""Sending rows to an in-memory stream, one after the other, in the order they were published.

A stream is ordered and lives on one node, so there is nothing to divide: rows come to the driver a
piece at a time, sorted by Spark, and go out at their pace. Values that are JSON are sent as such,
others as text.
"""

import json
import time
from typing import TYPE_CHECKING, Any

from waterclock.model.errors import BadInput
from waterclock.spark.jobs.derived_ids import derived_id
from waterclock.spark.jobs.job import JobOptions, node_client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def send_rows(
    rows: "DataFrame", options: JobOptions, stream: str, *, tag: str, speed: float | None,
    is_stored: bool,
) -> int:  # fmt: skip
    """Send all rows; return how many. Stored ones have ids, and are stored once."""
    from pyspark.sql import functions as F

    ordered = rows.orderBy("append_time", "partition", "offset").select(
        "partition",
        "offset",
        "value",
        F.unix_millis("append_time").alias("ms"),
        F.sha2(derived_id(f"replay-{tag}"), 256).alias("id"),
    )
    sent = 0
    began, first_ms = time.monotonic(), None
    with node_client(options) as client:
        for row in ordered.toLocalIterator():
            if speed is not None:
                first_ms = row["ms"] if first_ms is None else first_ms
                wait_s = began + (row["ms"] - first_ms) / 1_000 / speed - time.monotonic()
                if wait_s > 0:
                    time.sleep(wait_s)
            value = json_of(row["value"], f"{row['partition']}/{row['offset']}")
            if is_stored:
                client.streams.send_and_store(stream, value, message_id=row["id"])
            else:
                client.streams.send(stream, value)
            sent += 1
    return sent


def json_of(value: bytes | bytearray | None, place: str) -> Any:  # noqa: ANN401 - JSON is anything
    """Return a value as JSON: parsed if it is some, else as text; raise BadInput if it is none."""
    if value is None:
        return None
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"the value at {place} is not text: a stream carries JSON") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
