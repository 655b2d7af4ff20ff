"""What all jobs share: the options that say where the node is, and the summary they return.

A job is a module with `run(spark, options, reporter) -> Summary`. It may be run again at any time:
what it has written it knows again, by the ids of its messages and by the node's write registry.
A dry run reads and checks everything and changes nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import Column
from pyspark.sql import functions as F

from waterclock.client._sync.client import BlockingClient, connect_blocking
from waterclock.client.settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REJECTED = 3
"""It is done, and some rows were refused: the summary says which and why."""

FORMAT = "waterclock"
CONNECT_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options that every job has."""

    servers: str = ""
    """`host:port`, or several by commas; without, WATERCLOCK_ADDRESS or localhost:9000."""
    is_dry_run: bool = False
    """Read and check everything, change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a job did, or would have done."""

    job: str
    rows: int
    """What was written, sent or kept; in a dry run, what would have been."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """How many rows were refused, by reason."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The job's own figures, in the order they are shown; plain values that JSON knows."""
    is_dry_run: bool = False
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return EXIT_REJECTED if any(self.rejected.values()) else EXIT_OK

    def plain(self) -> dict[str, object]:
        """Return it for machines."""
        return {
            "job": self.job,
            "dry_run": self.is_dry_run,
            "rows": self.rows,
            "rejected": dict(self.rejected),
            **self.facts,
            "seconds": round(self.seconds, 3),
        }


class Reporter(Protocol):
    """Shows how a job gets on."""

    def stage(self, what: str, *, rows: int | None = None) -> AbstractContextManager[None]:
        """Show what is being done while the block runs, and how much of it Spark has done;
        `rows`, if known, is how many there are."""

    def note(self, text: str) -> None:
        """Tell a person something that is no result."""


def node_client(options: JobOptions) -> BlockingClient:
    """Return a client of the node for what the driver itself asks; use it with `with`."""
    settings = ClientSettings(connect_timeout_ms=CONNECT_MS)
    return connect_blocking(options.servers or None, settings)


def connector(options: JobOptions, **more: object) -> dict[str, str]:
    """Return options for `format("waterclock")`: where the node is, and those given that are not
    None."""
    given = {name: str(value) for name, value in more.items() if value is not None}
    return {"servers": options.servers, **given} if options.servers else given


def read(
    spark: "SparkSession", options: JobOptions, *, schema: str | None = None, **more: object
) -> "DataFrame":
    """Return the rows of a topic; `schema` names the columns wanted, which alone are then read."""
    reader = spark.read.format(FORMAT).options(**connector(options, **more))
    return (reader if schema is None else reader.schema(schema)).load()


def append(rows: "DataFrame", options: JobOptions, **more: object) -> None:
    """Write rows to a topic."""
    rows.write.format(FORMAT).options(**connector(options, **more)).mode("append").save()


def make_topic(options: JobOptions, topic: str, *, like: str | None = None) -> None:
    """Create a topic that is missing, with as many partitions as another has."""
    with node_client(options) as client:
        count = None if like is None else len(client.topics.get(like).partitions)
        client.topics.create(topic, partitions=count, if_absent=True)


def digest(*parts: object) -> str:
    """Return a short name for the options of a job: the same for the same, on any machine."""
    options = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(options.encode(), digest_size=12).hexdigest()


SOURCE_BYTES_MAX = 120
"""A longer id of the source is replaced by its hash: with the rest it must stay below the limit."""


def derived_id(tag: str) -> Column:
    """Return the id made from columns message_id, partition and offset; `tag` names the job."""
    source = F.coalesce(F.col("message_id"), F.lit(b""))
    short = F.when(F.length(source) <= SOURCE_BYTES_MAX, source).otherwise(
        F.sha2(source, 256).cast("binary")
    )
    place = F.concat(
        F.lit(f"#{tag}/"), F.col("partition").cast("string"), F.lit("/"),
        F.col("offset").cast("string"),
    )  # fmt: skip
    return F.concat(short, place.cast("binary"))
