"""Waterclock for Spark: `format("waterclock")`, batch and streaming, and the jobs built on it.

This package itself imports nothing: Spark's workers load only the modules that a task needs.
"""

from waterclock.model.extras import need

need("pyspark", "spark")
