"""A batch is within every limit, or refused with the name of the one it breaks."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.damage import mangled
from tests.log.frames import NOW_MS, messages, sample
from waterclock.log.batch import Batch, decode_untrusted, encode_batch, parse_batch, wire_size
from waterclock.log.schema import encode, from_messages
from waterclock.model.errors import BadBatch, BadInput, LimitExceeded
from waterclock.model.ids import UUID7_ENTROPY_BYTES, Millis, uuid7, uuid7_batch
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import Compression

LIMITS = Limits()
SAMPLES = [sample(n, due_ms=n or None) for n in range(5)]
# 2 bytes of id, 3 of key, 5 of value, 2 headers of 3 + 4 bytes: 17 in all.
SEVENTEEN = Message(b"value", key=b"key", message_id=b"id", headers={"a": b"12", "bc": b"34"})
ENTROPY = bytes(range(UUID7_ENTROPY_BYTES))

AT_THE_LIMIT = [
    ("message bytes", "message_bytes_max", 17),
    ("message_id bytes", "message_id_bytes_max", 2),
    ("key bytes", "key_bytes_max", 3),
    ("headers", "headers_max", 2),
    ("header bytes", "header_bytes_max", 7),
]


def refusal_of(batch: list[Message], limits: Limits) -> tuple[str, int, int | None]:
    """Return which limit refuses a batch, what it is, and what it met: the same if it is made here
    and if it comes from outside."""
    refusals = []
    for made in (encode_batch, parse_encoded):
        with pytest.raises(LimitExceeded) as raised:
            made(batch, limits, now_ms=NOW_MS)
        refusals.append((raised.value.field, raised.value.limit, raised.value.got))
    assert refusals[0] == refusals[1]
    return refusals[0]


def parse_encoded(
    batch: list[Message], limits: Limits, *, now_ms: int, compression: Compression = "none"
) -> Batch:
    return parse_batch(encode(from_messages(batch), compression), limits, now_ms=now_ms)


@pytest.mark.parametrize(("field", "name", "size"), AT_THE_LIMIT)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_message_may_reach_each_limit_but_not_pass_it(field, name, size, place):
    batch = [Message(None, message_id=b"x") for _ in range(3)]
    batch.insert(place, SEVENTEEN)

    assert encode_batch(batch, Limits(**{name: size}), now_ms=NOW_MS).count == 4
    assert refusal_of(batch, Limits(**{name: size - 1})) == (field, size - 1, size)


def test_a_batch_may_reach_the_limit_of_messages_but_not_pass_it():
    assert encode_batch(SAMPLES, Limits(batch_messages_max=5), now_ms=NOW_MS).count == 5
    assert refusal_of(SAMPLES, Limits(batch_messages_max=4)) == ("batch messages", 4, 5)


def test_a_batch_may_reach_the_limit_of_bytes_but_not_pass_it():
    size = len(encode(from_messages(SAMPLES)))

    assert encode_batch(SAMPLES, Limits(batch_bytes_max=size), now_ms=NOW_MS).count == 5
    assert refusal_of(SAMPLES, Limits(batch_bytes_max=size - 1)) == ("batch bytes", size - 1, size)


def test_a_batch_counts_as_large_as_it_becomes():
    body = encode(from_messages([Message(bytes(10_000), message_id=b"zeros")]), "zstd")
    size = wire_size(body).decoded_bytes

    assert len(body) < 2_000 < 10_000 < size
    assert parse_batch(body, Limits(batch_bytes_max=size), now_ms=NOW_MS).count == 1
    with pytest.raises(LimitExceeded, match="inflated"):
        parse_batch(body, Limits(batch_bytes_max=size - 1), now_ms=NOW_MS)


def test_a_due_time_may_reach_the_horizon_but_not_pass_it():
    limits = Limits(due_horizon_ms_max=60_000)
    at, beyond = NOW_MS + 60_000, NOW_MS + 60_001

    assert encode_batch([sample(1, due_ms=at)], limits, now_ms=NOW_MS).count == 1
    assert refusal_of([sample(1), sample(2, due_ms=beyond)], limits) == ("due_ms", at, beyond)


@pytest.mark.parametrize("due_ms", [2**63 - 1, 2**62, 10**15])
def test_a_due_time_far_beyond_the_horizon_does_not_wrap(due_ms):
    assert refusal_of([sample(1), sample(2, due_ms=due_ms)], LIMITS)[0] == "due_ms"


@pytest.mark.parametrize("due_ms", [-1, -NOW_MS, -(2**63)])
def test_a_due_time_before_1970_is_refused(due_ms):
    with pytest.raises(BadBatch, match="before 1970"):
        encode_batch([sample(1), sample(2, due_ms=due_ms)], LIMITS, now_ms=NOW_MS)


def broken(batch: list[Message], limits: Limits) -> set[str]:
    """Say which limits a batch breaks, message by message."""
    found = set()
    for message in batch:
        headers = message.headers or {}
        header_bytes = sum(len(name.encode()) + len(value) for name, value in headers.items())
        sizes = {
            "message_id bytes": (len(message.message_id or b""), limits.message_id_bytes_max),
            "key bytes": (len(message.key or b""), limits.key_bytes_max),
            "headers": (len(headers), limits.headers_max),
            "header bytes": (header_bytes, limits.header_bytes_max),
        }
        whole = len(message.message_id or b"") + len(message.key or b"")
        whole += len(message.value or b"") + header_bytes
        sizes["message bytes"] = (whole, limits.message_bytes_max)
        found |= {field for field, (size, limit) in sizes.items() if size > limit}
    return found


@given(
    st.lists(messages(), min_size=1, max_size=5),
    st.builds(
        Limits,
        message_bytes_max=st.integers(1, 40),
        message_id_bytes_max=st.sampled_from([1, 5, 255]),
        key_bytes_max=st.integers(1, 5),
        headers_max=st.integers(0, 2),
        header_bytes_max=st.integers(0, 8),
    ),
    st.sampled_from(["none", "lz4", "zstd"]),
)
def test_a_batch_is_refused_exactly_if_a_message_breaks_a_limit(batch, limits, compression):
    expected = broken(batch, limits)

    if expected:
        assert refusal_of(batch, limits)[0] in expected
    else:
        for make in (encode_batch, parse_encoded):
            made = make(batch, limits, now_ms=NOW_MS, compression=compression)
            assert made.rows.equals(from_messages(batch))
            assert decode_untrusted(made.body).equals(made.rows)


def test_a_batch_keeps_the_bytes_it_came_in():
    body = bytes(encode(from_messages(SAMPLES), "zstd"))

    batch = parse_batch(body, LIMITS, now_ms=NOW_MS)

    assert batch.body.obj is body
    assert batch.rows.equals(from_messages(SAMPLES))
    assert batch.ids.to_pylist() == [b"id-%d" % n for n in range(5)]
    assert repr(batch) == f"<Batch 5 messages, {len(body)} B>"


def test_due_times_are_an_array_or_none_at_all():
    timely = parse_batch(encode(from_messages(SAMPLES)), LIMITS, now_ms=NOW_MS)
    plain = parse_batch(encode(from_messages([sample(1), sample(2)])), LIMITS, now_ms=NOW_MS)

    assert timely.due_ms is not None
    assert timely.due_ms.tolist() == [0, 1, 2, 3, 4]
    assert plain.due_ms is None


@given(st.lists(st.booleans(), min_size=5, max_size=5), st.sampled_from(["none", "lz4", "zstd"]))
def test_a_selection_is_a_batch_of_the_rows_chosen(keep, compression):
    chosen = encode_batch(SAMPLES, LIMITS, now_ms=NOW_MS).select(np.array(keep), compression)

    kept = [message for message, is_kept in zip(SAMPLES, keep, strict=True) if is_kept]
    assert chosen.count == len(kept)
    assert chosen.rows.equals(from_messages(kept))
    assert chosen.due_ms is not None
    assert chosen.due_ms.tolist() == [message.due_ms or 0 for message in kept]
    if kept:
        assert parse_batch(chosen.body, LIMITS, now_ms=NOW_MS).rows.equals(chosen.rows)


@pytest.mark.parametrize(
    ("batch", "field"),
    [
        ([], "body"),
        ([sample(1), Message(b"x", message_id=b"")], "message_id"),
        ([sample(1), Message(b"x")], "message_id"),
    ],
)
def test_a_batch_without_messages_or_with_an_empty_id_is_refused(batch, field):
    with pytest.raises(BadBatch) as raised:
        encode_batch(batch, LIMITS, now_ms=NOW_MS)

    assert raised.value.field == field


@given(st.lists(st.none() | st.binary(min_size=1, max_size=4), min_size=1, max_size=6))
def test_ids_are_made_for_messages_that_have_none(ids):
    batch = [Message(b"x", message_id=message_id) for message_id in ids]

    made = encode_batch(batch, LIMITS, now_ms=NOW_MS, entropy=ENTROPY)

    fresh = iter(uuid7_batch(Millis(NOW_MS), ids.count(None), ENTROPY))
    assert made.ids.to_pylist() == [given or next(fresh).tobytes() for given in ids]


def test_one_message_without_an_id_gets_one_only_from_enough_entropy():
    made = encode_batch([Message(b"x")], LIMITS, now_ms=NOW_MS, entropy=ENTROPY)

    assert made.ids.to_pylist() == [uuid7(Millis(NOW_MS), ENTROPY)]
    with pytest.raises(BadBatch, match="entropy"):
        encode_batch([Message(b"x")], LIMITS, now_ms=NOW_MS, entropy=ENTROPY[1:])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("value", "text"), ("value", 5), ("value", [b"x"]),
        ("key", "text"), ("message_id", "text"), ("message_id", 7),
        ("headers", {"a": "text"}), ("headers", {b"a": b"x"}), ("headers", {5: b"x"}),
        ("headers", {"a": None}), ("headers", {"\ud800": b"x"}), ("headers", [("a", b"x")]),
        ("due_ms", 1.5), ("due_ms", 2.0), ("due_ms", "soon"), ("due_ms", True), ("due_ms", 2**63),
    ],
)  # fmt: skip
def test_a_message_of_wrong_types_is_refused(field, value):
    change: dict[str, Any] = {field: value}

    with pytest.raises(BadBatch):
        encode_batch([sample(1), replace(sample(2), **change)], LIMITS, now_ms=NOW_MS)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_thousands_of_mangled_batches_are_sound_or_refused(compression):
    body = bytes(encode(from_messages(SAMPLES), compression))
    random = Random(f"batch {compression}")
    sound = 0
    for _ in range(4_000):
        try:
            batch = parse_batch(mangled(body, random), LIMITS, now_ms=NOW_MS)
        except BadInput:
            continue
        batch.rows.validate(full=True)
        assert len(batch.rows.to_pylist()) == batch.count
        assert batch.select(np.ones(batch.count, np.bool_)).count == batch.count
        sound += 1

    assert sound > 200
