"""Replays: the same stretch however often they are run, to every target, at a pace."""

import pyarrow.parquet as pq
import pytest

from waterclock.model.errors import BadInput
from waterclock.spark.jobs import replay
from waterclock.spark.jobs.progress import SilentReporter
from waterclock.spark.jobs.replay import ReplayOptions, Stretch, narrowed, offsets_of


@pytest.fixture
def run(spark, node, topic):
    """Return a function that replays the test's topic: two partitions of a hundred messages."""
    node.client.topics.create(topic, partitions=2)
    for partition in (0, 1):
        node.fill(topic, partition, 100, first=100 * partition)

    def run_job(**options):
        shown = ReplayOptions(servers=node.servers, topic=topic, **options)
        return replay.run(spark, shown, SilentReporter())

    return run_job


def values(node, topic):
    return sorted(each.value for each in node.client.replay(topic))


def numbered(numbers):
    return sorted(f"value {n}".encode() for n in numbers)


def test_a_stretch_filtered_goes_to_a_topic_once_however_often_it_is_run(run, node, topic):
    options = {
        "from_offsets": "0:50,1:90", "where": "cast(key as string) <> 'key-3'",
        "to_topic": f"{topic}-again",
    }  # fmt: skip
    first = run(**options)
    node.fill(topic, 0, 10, first=500)
    again = run(**options)

    kept = [n for n in [*range(50, 100), *range(190, 200)] if n % 10 != 3]
    assert first.rows == len(kept) == 54
    assert (again.rows, again.facts["already_replayed"]) == (0, 54)
    assert values(node, f"{topic}-again") == numbered(kept)


def test_another_name_replays_anew_and_up_to_now(run, node, topic):
    target = f"{topic}-again"
    run(to_topic=target, from_offsets="95")
    node.fill(topic, 0, 1, first=500)
    anew = run(to_topic=target, from_offsets="95", name="second")

    assert anew.rows == 11
    assert len(values(node, target)) == 21


def test_a_replay_that_lost_its_write_registry_is_known_by_its_ids(run, node, topic):
    target = f"{topic}-again"
    first = run(to_topic=target)
    node.client.write_registry.abandon(target, f"replayed-{first.facts['name']}")
    run(to_topic=target)

    assert values(node, target) == numbered(range(200))


def test_with_a_speed_the_gaps_are_kept_by_due_times(run, node, topic):
    # The first two of what is replayed were published at two moments some milliseconds apart; at
    # this speed, days apart. The first is due at once.
    node.fill(topic, 0, 1, first=500)
    summary = run(to_topic=f"{topic}-paced", speed=1e-9, from_offsets="0:99,1:100")

    assert summary.rows == 2
    assert values(node, f"{topic}-paced") == numbered([99])
    (waiting,) = node.client.scheduled(f"{topic}-paced", with_values=True)
    assert waiting.value == b"value 500"


def test_to_parquet_it_overwrites_its_own_folder_and_no_other(run, topic, tmp_path):
    run(to_parquet=str(tmp_path), to_offsets="0:5,1:0", name="first")
    run(to_parquet=str(tmp_path), to_offsets="0:5,1:0", name="first")
    run(to_parquet=str(tmp_path), to_offsets="0:3,1:0", name="second")

    read = {path.name: pq.read_table(path, partitioning=None) for path in tmp_path.iterdir()}
    assert {name: table.num_rows for name, table in read.items()} == {
        "replay=first": 5,
        "replay=second": 3,
    }
    assert read["replay=second"].column("offset").to_pylist() == [0, 1, 2]


def test_to_a_stream_it_comes_in_order_and_is_stored_once(run, node, topic):
    options = {"to_stream": f"{topic}-stream", "from_offsets": "0:97,1:100", "is_stored": True}
    run(**options, speed=1_000_000.0)
    run(**options, speed=1_000_000.0)

    page = node.client.streams.receive(f"{topic}-stream", resume="earliest", timeout="1s", limit=10)
    assert [each.value for each in page] == ["value 97", "value 98", "value 99"]


def test_to_a_group_it_sets_the_group_back(run, node, topic):
    with node.client.subscribe(topic, group="billing") as messages:
        next(iter(messages)).ack()
    summary = run(to_group="billing", from_offsets="0:10,1:20")

    places = node.client.groups.get(topic, "billing").partitions
    assert {each.partition: each.committed for each in places} == {0: 10, 1: 20}
    assert summary.rows == 170


def test_a_dry_run_counts_and_changes_nothing(run, node, topic):
    summary = run(to_topic=f"{topic}-again", is_dry_run=True)

    assert (summary.rows, summary.is_dry_run) == (200, True)
    assert f"{topic}-again" not in [each.name for each in node.client.topics.list()]
    assert node.client.write_registry.list(topic) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "one target"),
        ({"to_topic": "a", "to_group": "b"}, "one target"),
        ({"to_topic": "a", "since": "-1h", "from_offsets": "3"}, "times or offsets"),
        ({"to_group": "a", "where": "true"}, "no filter"),
        ({"to_topic": "a", "speed": 0.0}, "--speed must be over 0"),
        ({"to_parquet": "a", "speed": 1.0}, "no pace"),
        ({"to_topic": "a", "is_stored": True}, "--store"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, said):
    with pytest.raises(BadInput, match=said):
        ReplayOptions(topic="t", **options).check()


def test_a_wrong_filter_is_told_in_a_line(run):
    with pytest.raises(BadInput, match="--where 'offsett > 3'") as caught:
        run(to_topic="nowhere", where="offsett > 3")

    assert "\n" not in str(caught.value)


def test_offsets_are_for_all_partitions_or_for_each():
    whole = Stretch({0: 5, 1: 0}, {0: 50, 1: 60})

    assert offsets_of("--x", None, whole) == {}
    assert offsets_of("--x", "7", whole) == {0: 7, 1: 7}
    assert offsets_of("--x", "1:9", whole) == {1: 9}
    assert narrowed(whole, {0: 1}, {1: 10}) == Stretch({0: 5, 1: 0}, {0: 50, 1: 10})
    assert narrowed(whole, {0: 99}, {0: 3}) == Stretch({0: 50, 1: 0}, {0: 50, 1: 60})
    for wrong in ("x", "0:", "2:1", "-1", "0:1;1:1", "9999999999999999999"):
        with pytest.raises(BadInput, match="--x"):
            offsets_of("--x", wrong, whole)
