"""Where a streaming query stands, and what follows: pure."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput, OffsetOutOfRange
from waterclock.spark.read.ranges import Extent, Range
from waterclock.spark.read.stream_offsets import (
    between,
    capped,
    checked,
    from_json,
    limited,
    reached,
    to_json,
)

OFFSETS = st.dictionaries(st.integers(0, 12), st.integers(0, 1000), max_size=8)


@given(OFFSETS, st.randoms(use_true_random=False))
def test_the_same_place_is_the_same_text(offsets, random):
    shuffled = list(offsets.items())
    random.shuffle(shuffled)

    text = json.dumps(to_json(offsets))
    assert text == json.dumps(to_json(dict(shuffled)))
    assert from_json(json.loads(text)) == offsets


def test_partitions_stand_in_the_order_of_their_numbers():
    assert list(to_json({10: 1, 9: 1, 0: 1})) == ["0", "9", "10"]


@pytest.mark.parametrize("said", [{"x": 1}, {"0": "1"}, {"0": -1}, {"0": 1.5}, {"0": True}])
def test_a_checkpoint_of_something_else_is_refused(said):
    with pytest.raises(BadInput, match="checkpoint folder of its own"):
        from_json(said)


@given(OFFSETS, OFFSETS, st.integers(1, 3000))
def test_a_limit_is_used_up_and_shared_out(start, more, rows_max):
    ends = {each: start.get(each, 0) + count for each, count in more.items()}
    total = sum(more.values())

    found = limited(start, ends, rows_max)

    taken = {each: end - start.get(each, 0) for each, end in found.items()}
    assert sum(taken.values()) == min(total, rows_max)
    for each, count in taken.items():
        assert 0 <= count <= more[each]
        assert abs(count - more[each] * min(1, rows_max / max(total, 1))) <= 1


def test_a_new_partition_counts_once_it_has_something():
    extents = {0: Extent(0, 5), 1: Extent(0, 0), 2: Extent(0, 3)}

    assert reached({0: 5}, extents) == {0: 5, 2: 3}
    assert reached({0: 5, 1: 0}, extents) == {0: 5, 1: 0, 2: 3}


def test_nothing_beyond_the_target_is_reached():
    assert capped({0: 9, 1: 2, 2: 7}, {0: 5, 1: 4}) == {0: 5, 1: 2}


def test_a_batch_reads_from_where_the_last_ended_and_new_partitions_whole():
    extents = {0: Extent(2, 20), 1: Extent(0, 20)}

    found = between({0: 5}, {0: 8, 1: 3}, extents, fail_on_data_loss=True)

    assert found == [Range(0, 5, 8), Range(1, 0, 3)]


def test_what_retention_took_is_an_error_or_left_out():
    extents = {0: Extent(6, 20)}

    with pytest.raises(OffsetOutOfRange, match=r"offset 5 of partition 0 is gone.*failOnDataLoss"):
        between({0: 5}, {0: 8}, extents, fail_on_data_loss=True)
    assert between({0: 5}, {0: 8}, extents, fail_on_data_loss=False) == [Range(0, 6, 8)]
    assert between({0: 2}, {0: 4}, extents, fail_on_data_loss=False) == []
    # What was read already may go.
    assert between({0: 5}, {0: 5}, extents, fail_on_data_loss=True) == []


def test_a_log_that_is_shorter_than_what_was_read_is_another_log():
    with pytest.raises(OffsetOutOfRange, match=r"made anew.*new checkpoint"):
        checked({0: 9}, {0: Extent(0, 4)}, fail_on_data_loss=True)
    checked({0: 9}, {0: Extent(0, 4)}, fail_on_data_loss=False)
    with pytest.raises(OffsetOutOfRange, match="made anew"):
        between({0: 2}, {0: 9}, {0: Extent(0, 4)}, fail_on_data_loss=True)


def test_what_retention_emptied_is_lost_though_the_log_spans_it():
    emptied = {0: Extent(2, 20, retained=10)}

    with pytest.raises(OffsetOutOfRange, match=r"offset 5 of partition 0 is gone.*below 10"):
        between({0: 5}, {0: 12}, emptied, fail_on_data_loss=True)
    with pytest.raises(OffsetOutOfRange, match="is gone"):
        checked({0: 5}, emptied, fail_on_data_loss=True)
    # Who stands at the log's beginning has asked for the earliest there is.
    assert between({0: 2}, {0: 12}, emptied, fail_on_data_loss=True) == [Range(0, 2, 12)]
    checked({0: 10}, emptied, fail_on_data_loss=True)
