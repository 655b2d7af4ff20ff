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


def main(told: dict[str, Any]) -> None:
    """Run until everything is copied."""
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": "20"}
    spark = session(master="local[2]", settings=small, is_short=True)
    faults.register(spark)
    reader = spark.readStream.format("waterclock").option("servers", told["servers"])
    limits = {"maxOffsetsPerTrigger": told["batch_rows"], "minPartitions": 2}
    rows = reader.options(topic=told["source"], **limits).load()
    writer = rows.selectExpr("key", "value").writeStream.format("waterclock_faulty")
    query = (
        writer.options(servers=told["servers"], topic=told["sink"], **told["options"])
        .option("faultGroup", os.getpgrp())
        .option("checkpointLocation", told["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
