"""The Spark session that jobs run in, and the JVM under it."""

from waterclock.spark.session.builder import running_session, session

__all__ = ["running_session", "session"]
