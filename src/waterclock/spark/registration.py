"""Making `format("waterclock")` known to a session.

An installed `pyspark_waterclock` is found by Spark itself. We register it all the same: one broken
`pyspark_*` package, of whoever, keeps Spark from finding any.
"""

from pyspark.sql import SparkSession

from waterclock.spark.source import WaterclockSource


def register(spark: SparkSession) -> None:
    """Have this session know `format("waterclock")`; again is harmless. Connect sessions too."""
    spark.dataSource.register(WaterclockSource)
