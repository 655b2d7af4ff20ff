"""Writing to topics from Spark: each row is stored once, however often Spark computes it."""
