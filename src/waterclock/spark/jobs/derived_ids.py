"""Ids of messages that a job writes because of other messages.

An id says what it was made from: `<id of the source>#<job>/<partition>/<offset>`. A job that is run
again, in whole or after a crash, makes the same ids, and the node stores each once. The source's
own id is part of it, so that a topic made anew under an old name begins with ids of its own.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

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
