"""The tour in examples/ does what it says."""

import json

from examples import spark_tour


def test_the_tour_asks_in_sql_and_sends_counts_for_later(spark, node, topic, capsys):
    spark_tour.publish_orders(node.client, topic)
    node.client.topics.create(f"{topic}-reminders", partitions=1)

    spark_tour.ask_in_sql(spark, node.servers, topic)
    waiting = spark_tour.count_by_window(spark, node.servers, topic, f"{topic}-reminders")

    assert capsys.readouterr().out.splitlines() == [
        "Lima: 20 orders, 61000 cents",
        "Oslo: 20 orders, 57000 cents",
        "Rome: 20 orders, 59000 cents",
    ]
    # Twelve o'clock and twenty past are over by the watermark; twenty to one may still get orders.
    found = list(node.client.scheduled(f"{topic}-reminders", with_values=True))
    assert waiting == len(found) == 6
    counts = [json.loads(each.value) for each in found]
    assert sorted((each["city"], each["window"]["start"][11:16]) for each in counts) == [
        (city, start) for city in ("Lima", "Oslo", "Rome") for start in ("12:00", "12:20")
    ]
    assert sum(each["orders"] for each in counts) == 40
