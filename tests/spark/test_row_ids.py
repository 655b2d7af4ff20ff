"""Ids of rows that bring none: of the content and nothing else, and never the same for two rows."""

import hashlib
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waterclock.log.schema import HEADERS
from waterclock.model.errors import LimitExceeded
from waterclock.spark.write import row_ids as module
from waterclock.spark.write.row_hashes import Hashes, row_hashes
from waterclock.spark.write.row_ids import ID_BYTES, Occurrences, RowIds

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("due_ms", pa.int64()),
        ("partition", pa.int32()),
    ]
)

# Few different values, so that rows are equal, or nearly, all the time.
TEXTS = st.sampled_from(
    [None, b"", b"\0", b"a", b"ab", b"a\0", b"12345678", b"123456789", b"x" * 70]
)
PAIRS = st.lists(
    st.tuples(st.sampled_from(["", "a", "b"]), TEXTS), max_size=3, unique_by=lambda p: p[0]
)
ROWS = st.lists(
    st.tuples(
        TEXTS,
        TEXTS,
        st.none() | PAIRS,
        st.sampled_from([None, 0, 1, -1]),
        st.sampled_from([None, 0, 1]),
    ),
    max_size=40,
)


def batch_of(rows):
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    arrays = [
        pa.array(list(column), field.type) for column, field in zip(columns, SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def ids_of(rows, cuts=(), *, task=3):
    """Return the ids of rows that come in batches cut there, each a slice as Arrow's are."""
    whole, made, start = batch_of(rows), RowIds(writer="w", batch=7, task=task), 0
    found = []
    for end in [*sorted(cuts), len(rows)]:
        found += made.of(whole.slice(start, end - start)).to_pylist()
        start = end
    return found


def content(row):
    """Return what a row says; the pairs of a map have no order."""
    key, value, headers, due_ms, partition = row
    return key, value, None if headers is None else frozenset(headers), due_ms, partition


@given(rows=ROWS, data=st.data())
@example(rows=[(None, b"a", None, None, None)] * 3, data=None)
def test_order_and_batching_leave_no_trace_in_ids(rows, data):
    shuffled, cuts = list(reversed(rows)), []
    if data is not None:
        shuffled = data.draw(st.permutations(rows))
        cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))

    first, second = ids_of(rows), ids_of(shuffled, cuts)

    assert set(first) == set(second)
    by_content = [
        Counter((content(row), id_[8:24]) for row, id_ in zip(some, ids, strict=True))
        for some, ids in ((rows, first), (shuffled, second))
    ]
    assert by_content[0] == by_content[1]


@given(rows=ROWS)
def test_no_two_rows_of_a_task_share_an_id(rows):
    ids = ids_of(rows)

    assert len(set(ids)) == len(rows)
    assert all(len(id_) == ID_BYTES for id_ in ids)


@given(rows=ROWS)
def test_equal_contents_and_no_others_have_equal_hashes(rows):
    hashes = row_hashes(batch_of(rows), 1)

    seen = list(zip(hashes.first.tolist(), hashes.second.tolist(), strict=True))
    pairs = set(zip(map(content, rows), seen, strict=True))
    assert len(pairs) == len({content(row) for row in rows}) == len(set(seen))


def test_the_pairs_of_headers_may_come_in_any_order():
    one = ids_of([(None, b"v", [("a", b"1"), ("b", b"2")], None, None)])
    other = ids_of([(None, b"v", [("b", b"2"), ("a", b"1")], None, None)])
    crossed = ids_of([(None, b"v", [("a", b"2"), ("b", b"1")], None, None)])

    assert one == other != crossed


def test_tasks_batches_and_writers_have_ids_of_their_own():
    row = batch_of([(b"k", b"v", None, None, None)])
    made = [
        RowIds(writer=writer, batch=batch, task=task).of(row)[0].as_py()
        for writer in ("w", "w1")
        for batch in (0, 1)
        for task in (0, 1)
    ]

    assert len({id_[:8] for id_ in made}) == len({id_[8:24] for id_ in made}) == 8


def test_ids_stay_what_they_are_from_release_to_release():
    """A query is upgraded between a broken attempt and the next."""
    rows = [
        (b"key", b"value", [("name", b"text"), ("none", None)], 1_700_000_000_000, 4),
        (None, b"x" * 1_000, None, None, None),
        (b"", None, [], -1, None),
        (b"", None, [], -1, None),
    ]

    digest = hashlib.sha256(b"".join(ids_of(rows))).hexdigest()

    assert digest == "cdb9e28ce1d5c8562fd684e69fff9d028d1717cb3d9d5e0b116f862b7320bee1"


@pytest.mark.parametrize("sizes", [[128], [100], [64, 65, 191, 5_000], [0, 1], [3_000_000, 7]])
def test_long_and_short_values_hash_alike_alone_and_among_others(sizes):
    rng = random.Random(5)
    values = [rng.randbytes(rng.choice(sizes)) for _ in range(60 if max(sizes) < 10_000 else 6)]
    together = row_hashes(pa.record_batch({"value": pa.array(values, pa.binary())}), 9)

    for row, value in enumerate(values):
        alone = row_hashes(pa.record_batch({"value": pa.array([value], pa.binary())}), 9)
        assert (alone.first[0], alone.second[0]) == (together.first[row], together.second[row])


def test_every_bit_of_a_value_moves_half_of_its_hash():
    value = bytearray(random.Random(3).randbytes(24))
    values = [bytes(value)]
    for bit in range(len(value) * 8):
        other = value.copy()
        other[bit // 8] ^= 1 << bit % 8
        values.append(bytes(other))

    hashes = row_hashes(pa.record_batch({"value": pa.array(values, pa.binary())}), 0)

    for half in hashes:
        moved = [int(h ^ half[0]).bit_count() for h in half[1:]]
        assert min(moved) > 10
        assert 28 < sum(moved) / len(moved) < 36


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=60), st.integers(1, 60))
def test_occurrences_count_as_a_dictionary_does(contents, step):
    table = Occurrences()
    plain: Counter[tuple[int, int]] = Counter()
    for start in range(0, len(contents), step):
        some = contents[start : start + step]
        first, second = (np.array([c[i] for c in some], np.uint64) for i in (0, 1))
        # Equal within a batch, they may be numbered in any order.
        expected = Counter((c, plain[c] + some[:at].count(c)) for at, c in enumerate(some))
        plain.update(some)

        numbers = table.number(Hashes(first, second)).tolist()

        assert Counter(zip(some, numbers, strict=True)) == expected


def test_a_table_that_grew_remembers_all_it_counted():
    hashes = Hashes(*np.random.default_rng(2).integers(0, 1 << 63, (2, 300_000), np.uint64))
    table = Occurrences()

    for times in range(3):
        for start in range(0, 300_000, 7_000):
            some = Hashes(*(half[start : start + 7_000] for half in hashes))
            assert (table.number(some) == times).all()


def test_a_task_has_no_more_rows_than_its_table_can_remember(monkeypatch):
    monkeypatch.setattr(module, "ROWS_MAX", 10)
    table = Occurrences()
    eleven = np.arange(11, dtype=np.uint64)

    with pytest.raises(LimitExceeded, match=r"more partitions.* 10"):
        table.number(Hashes(eleven, eleven))
