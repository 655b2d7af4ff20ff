"""Bulk jobs on Spark, one file each: the same code by `waterclock pipeline` and by spark-submit."""
