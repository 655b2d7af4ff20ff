"""Topics as tables of Spark SQL: views, joins of views, and inserts."""

import pytest
from pyspark.errors import PySparkException


@pytest.fixture
def view(spark, node):
    """Return a function that makes a temporary view of a topic."""

    def make(name, topic, **options):
        said = {"servers": node.servers, "topic": topic, **options}
        listed = ", ".join(f"{key} '{value}'" for key, value in said.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING waterclock OPTIONS ({listed})")

    return make


def test_a_view_is_a_topic_and_views_join(spark, node, topic, view):
    node.client.topics.create(topic, partitions=2)
    for partition in (0, 1):
        node.fill(topic, partition, 100, first=100 * partition)
    view("whole", topic)
    view("tail", topic, startingOffsets='{"0": 90, "1": 100}')

    assert spark.sql("SELECT count(*) AS n FROM whole").first()["n"] == 200
    joined = spark.sql(
        "SELECT cast(whole.value AS string) AS value FROM whole JOIN tail USING (message_id)"
    )
    assert sorted(row["value"] for row in joined.collect()) == [
        f"value {n}" for n in range(90, 100)
    ]


def test_two_views_of_the_same_topic_keep_their_own_ranges(spark, node, topic, view):
    node.client.topics.create(topic, partitions=1)
    node.fill(topic, 0, 100)
    view("early", topic, endingOffsets='{"0": 10}')
    view("late", topic, startingOffsets='{"0": 95}')

    rows = spark.sql("SELECT offset FROM early UNION ALL SELECT offset FROM late").collect()

    assert sorted(row["offset"] for row in rows) == [*range(10), *range(95, 100)]


def test_what_a_query_finds_is_inserted_as_messages(spark, node, topic, view):
    node.client.topics.create(topic, partitions=1)
    spark.sql(
        "SELECT concat('user-', id) AS key, cast(id AS string) AS value,"
        " current_timestamp() + interval 1 hour AS due_time FROM range(3)"
    ).write.format("waterclock").options(servers=node.servers, topic=topic).mode("append").save()
    view("waiting", topic, view="scheduled")

    found = spark.sql("SELECT cast(key AS string) AS key FROM waiting ORDER BY due_time, key")

    assert sorted(row["key"] for row in found.collect()) == ["user-0", "user-1", "user-2"]


def test_a_view_of_a_topic_that_is_not_there_fails_with_its_name(spark, view):
    def look():
        view("nothing", "no-such-topic")
        spark.sql("SELECT * FROM nothing").collect()

    with pytest.raises(PySparkException, match="no-such-topic"):
        look()
