"""A tour of Waterclock on Spark: SQL over topics, counts by window, and messages for later.

    waterclock up                          # a node, in another terminal, or WATERCLOCK_ADDRESS
    python examples/spark_tour.py          # with pip install 'waterclock[spark]'

Read it from top to bottom, like a notebook: each step prints what it found.
"""

import os
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import waterclock
from waterclock.spark.session import running_session

NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def publish_orders(client: waterclock.BlockingClient, topic: str) -> None:
    """Publish sixty orders of a quiet hour, one a minute, as JSON with the time in it."""
    client.topics.create(topic, partitions=2, if_absent=True)
    orders = [
        waterclock.Message(
            b'{"city": "%s", "cents": %d, "at": "%s"}'
            % (
                (b"Oslo", b"Rome", b"Lima")[n % 3],
                100 * n,
                (NOON + timedelta(minutes=n)).isoformat().encode(),
            ),
            key=b"order-%d" % n,
            message_id=b"%s-order-%d" % (topic.encode(), n),
        )
        for n in range(60)
    ]
    client.publish_many(topic, orders)


def ask_in_sql(spark: SparkSession, servers: str, topic: str) -> None:
    """A topic is a table: a view of it, and any query over that."""
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING waterclock "
        f"OPTIONS (servers '{servers}', topic '{topic}')"
    )
    rows = spark.sql(
        "SELECT get_json_object(cast(value AS string), '$.city') AS city, count(*) AS orders,"
        " sum(cast(get_json_object(cast(value AS string), '$.cents') AS int)) AS cents"
        " FROM orders GROUP BY city ORDER BY city"
    ).collect()
    for row in rows:
        print(f"{row['city']}: {row['orders']} orders, {row['cents']} cents")


def count_by_window(spark: SparkSession, servers: str, topic: str, reminders: str) -> int:
    """Count orders of twenty minutes by their own time, and send each count as a message for
    later: a stream in, a stream out, exactly once.

    The watermark says how late an order may come: a window is told once none can come any more.
    Its message is named by window and city, so that it is there once, however often this is run.
    """
    stream = spark.readStream.format("waterclock").options(servers=servers, topic=topic).load()
    order = F.from_json(F.col("value").cast("string"), "city string, cents int, at timestamp")
    counts = (
        stream.select(order.alias("order"))
        .select("order.*")
        .withWatermark("at", "10 minutes")
        .groupBy(F.window("at", "20 minutes"), "city")
        .agg(F.count("*").alias("orders"))
    )
    messages = counts.select(
        F.col("city").alias("key"),
        F.to_json(F.struct("window", "city", "orders")).alias("value"),
        F.concat_ws("/", F.lit(reminders), "window.start", "city").alias("message_id"),
        (F.current_timestamp() + F.expr("interval 1 day")).alias("due_time"),
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            messages.writeStream.format("waterclock")
            .options(servers=servers, topic=reminders, checkpointLocation=checkpoint)
            .outputMode("append")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return spark.read.format("waterclock").options(
        servers=servers, topic=reminders, view="scheduled"
    ).load().count()  # fmt: skip


def main(servers: str, *, topic: str = "tour-orders") -> None:
    """Take the tour."""
    reminders = f"{topic}-reminders"
    with waterclock.connect_blocking(servers) as client:
        publish_orders(client, topic)
        client.topics.create(reminders, partitions=1, if_absent=True)
    with running_session(master="local[2]") as spark:
        ask_in_sql(spark, servers, topic)
        waiting = count_by_window(spark, servers, topic, reminders)
    print(f"{waiting} counts wait in {reminders} until tomorrow")


if __name__ == "__main__":
    main(os.environ.get("WATERCLOCK_ADDRESS", "localhost:9000"))
