"""How Spark finds `format("waterclock")` by itself: it looks for packages named `pyspark_*`."""

from waterclock.spark.source import WaterclockSource as DefaultSource

__all__ = ["DefaultSource"]
