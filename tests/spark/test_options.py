"""What a reader may be told: pure. Whatever comes, it is taken or refused in one clear line."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waterclock.spark.options import READ_OPTIONS, BadOption, OffsetBounds, ReadOptions


def parsed(**options: str) -> ReadOptions:
    return ReadOptions.parse({"topic": "orders", **options})


def test_names_are_taken_in_any_case_and_defaults_are_safe(monkeypatch):
    monkeypatch.delenv("WATERCLOCK_ADDRESS", raising=False)

    options = ReadOptions.parse({"TOPIC": "orders", "keyprefix": "a", "FAILONDATALOSS": "False"})

    assert (options.topic, options.key_prefix, options.fail_on_data_loss) == ("orders", b"a", False)
    assert options.servers == ("localhost:9000",)
    assert parsed().fail_on_data_loss


def test_the_environment_says_where_the_node_is(monkeypatch):
    monkeypatch.setenv("WATERCLOCK_ADDRESS", "water:7000")

    assert parsed().servers == ("water:7000",)
    assert parsed(servers="a:1, [::1]:2 ,c").servers == ("a:1", "[::1]:2", "c:9000")


def test_a_topic_can_be_given_to_load():
    assert ReadOptions.parse({"path": "orders"}).topic == "orders"
    assert ReadOptions.parse({"path": "__audit"}).topic == "__audit", "it may be the node's own"
    with pytest.raises(BadOption, match="given twice"):
        ReadOptions.parse({"path": "orders", "topic": "orders"})
    with pytest.raises(BadOption, match=r"option topic: must be one"):
        ReadOptions.parse({"paths": '["orders", "bills"]'})


def test_places_are_words_or_json():
    options = parsed(startingOffsets='{"1": "latest", "0": 7}', endingOffsets=" Earliest ")

    assert options.starting == OffsetBounds("earliest", {1: "latest", 0: 7})
    assert options.ending == OffsetBounds("earliest")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("2026-01-31 12:00:00.250+00:00", 1_769_860_800_250),
        ("1970-01-01T00:00:00.0005Z", 1),
        ("1500", 1_500),
    ],
)
def test_times_are_iso_with_a_zone_or_milliseconds(text, ms):
    assert parsed(startingTimestamp=text).starting == ms


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"zzz": "1"}, "option 'zzz': is unknown; there are servers, topic"),
        ({"subscribe": "orders"}, "option subscribe: is of Spark's Kafka source; here it is topic"),
        ({"kafka.bootstrap.servers": "x:1"}, "Kafka source; here it is servers"),
        ({"topic": "orders,bills"}, "option topic: must be one: read each by itself and put them"),
        ({"topic": "a b"}, "option topic: topic name 'a b': only letters"),
        ({"startingOffsets": "sometime"}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"0": -1}'}, "partition 0 has '-1'"),
        ({"startingOffsets": '{"0": true}'}, "partition 0 has 'true'"),
        ({"startingOffsets": '{"a": 1}'}, "whole number from 0 to"),
        ({"startingOffsets": '{"0": 1, "0": 2}'}, "must be earliest"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "has no zone"),
        ({"startingTimestamp": "yesterday"}, "must be ISO 8601"),
        ({"startingTimestamp": "-5"}, "from 0 to"),
        ({"startingTimestamp": "0001-01-01T00:00:00+23:59"}, "must be"),
        ({"startingTimestamp": "5", "startingOffsets": "latest"}, "give one of them"),
        ({"partitions": "1,x"}, "option partitions: must be a whole number"),
        ({"view": "everything"}, "must be one of delivered, all, scheduled, dlq"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"minPartitions": "0"}, "from 1 to 10000"),
        ({"minPartitions": "1" * 30}, "from 1 to 10000"),
        ({"waitMs": "60001"}, "from 0 to 60000"),
        ({"servers": "a:b"}, "must be host:port"),
        ({"servers": "a:0"}, "must be host:port"),
        ({"servers": "http://a:1"}, "must be host:port"),
        ({"view": "dlq", "startingOffsets": '{"0": 1}'}, "use startingTimestamp"),
        ({"view": "scheduled", "endingOffsets": '{"0": 1}'}, "use endingTimestamp"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(options, says):
    with pytest.raises(BadOption) as refused:
        parsed(**options)

    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_topic_is_needed():
    with pytest.raises(BadOption, match=r"option topic: is missing"):
        ReadOptions.parse({})


def test_a_stream_has_no_end_and_no_listing():
    with pytest.raises(BadOption, match="a stream has no end"):
        parsed(endingOffsets='{"0": 1}').check_stream()
    with pytest.raises(BadOption, match="a stream has no end"):
        parsed(endingTimestamp="5").check_stream()
    with pytest.raises(BadOption, match="batch only"):
        parsed(view="dlq").check_stream()
    parsed(view="all").check_stream()


@given(st.dictionaries(st.sampled_from(READ_OPTIONS) | st.text(max_size=12), st.text(max_size=40)))
@example({"startingOffsets": "[" * 100_000})
@example({"startingOffsets": '{"0": 1e999}'})
@example({"startingOffsets": "{" + '"0":' + "9" * 5_000 + "}"})
@example({"endingTimestamp": "9" * 30})
@example({"minPartitions": "\u0661"})
@example({"keyPrefix": "\ud800"})
@example({"keys": "a\nb"})
@example({"keys": "\x00"})
@example({"keys": "\ud800"})
@example({"credential": "@a\nb"})
@example({"credential": "@\x00"})
def test_whatever_is_told_is_taken_or_refused_in_one_line(said):
    try:
        ReadOptions.parse({"topic": "orders", **said})
    except BadOption as refused:
        words = str(refused)
        assert len(words.splitlines()) == 1
        assert len(words) < 600
