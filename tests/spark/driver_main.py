"""A Spark driver as a process of its own, to be killed: copies a topic into another, to the end.

Told what to do by one JSON argument: `servers`, `source`, `sink`, `checkpoint`, and `options` of
the write.
"""

import json
import os
import sys
from typing import Any

from tests.spark import faults
from waterclock.spark.session import session


def main(said: dict[str, Any]) -> None:
    """Run until everything is copied."""
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": "20"}
    spark = session(master="local[2]", settings=small, is_short=True)
    faults.register(spark)
    reader = spark.readStream.format("waterclock").option("servers", said["servers"])
    limits = {"maxOffsetsPerTrigger": said["batch_rows"], "minPartitions": 2}
    rows = reader.options(topic=said["source"], **limits).load()
    writer = rows.selectExpr("key", "value").writeStream.format("waterclock_faulty")
    query = (
        writer.options(servers=said["servers"], topic=said["sink"], **said["options"])
        .option("faultGroup", os.getpgrp())
        .option("checkpointLocation", said["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
