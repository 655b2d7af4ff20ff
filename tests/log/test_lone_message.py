"""One message as a batch: the bytes that Arrow would write, and only those are taken unread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.batch import Batch, parse_batch
from waterclock.log.lone_message import LoneMessage, encode_lone, parse_any
from waterclock.log.schema import encode, from_messages
from waterclock.model.errors import BadBatch, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits
from waterclock.model.message import Message

LIMITS = Limits()
ids = st.binary(min_size=1, max_size=40)
keys = st.none() | st.binary(max_size=40)
values = st.binary(max_size=300)


@given(ids, keys, values)
def test_a_lone_message_has_the_bytes_that_arrow_gives_it(message_id, key, value):
    message = Message(value, key=key, message_id=message_id)

    assert encode_lone(message_id, key, value) == bytes(encode(from_messages([message])))


@given(ids, keys, values)
def test_a_lone_message_is_read_as_arrow_reads_it(message_id, key, value):
    body = encode_lone(message_id, key, value)

    found, expected = parse_any(body, LIMITS, now_ms=1), parse_batch(body, LIMITS, now_ms=1)

    assert isinstance(found, LoneMessage)
    assert found.rows.equals(expected.rows)
    assert (found.count, found.first_id, found.body) == (1, message_id, expected.body)
    assert (found.due_ms, found.may_expire) == (None, False)


@given(ids, keys, values, st.data())
def test_bytes_that_differ_anywhere_are_proven_by_arrow_or_refused(message_id, key, value, data):
    """Were a difference overlooked, the log would hold what nobody can read."""
    body = bytearray(encode_lone(message_id, key, value))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))

    def outcome(parse) -> object:
        try:
            found: Batch = parse(bytes(body), LIMITS, now_ms=1)
        except (BadBatch, LimitExceeded) as error:
            return type(error), str(error)
        return found.rows.to_pylist(), found.first_id

    assert outcome(parse_any) == outcome(parse_batch)


@given(st.binary(max_size=800))
def test_any_bytes_are_a_batch_or_one_error(body):
    with pytest.raises((BadBatch, LimitExceeded)):
        parse_any(body, LIMITS, now_ms=1)


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ((LIMITS.message_id_bytes_max + 1, 0, 1), "message_id bytes"),
        ((1, LIMITS.key_bytes_max + 1, 1), "key bytes"),
    ],
)
def test_a_lone_message_beyond_a_limit_is_refused_by_its_name(sizes, field):
    message_id, key, value = map(bytes, sizes)

    with pytest.raises(LimitExceeded) as refused:
        parse_any(encode_lone(message_id, key, value), LIMITS, now_ms=1)

    assert refused.value.field == field


def test_messages_that_are_not_plain_are_left_to_arrow():
    for message in (
        Message(b"v", message_id=b"i", headers={"a": b"b"}),
        Message(b"v", message_id=b"i", due_ms=Millis(5)),
        Message(None, key=b"k", message_id=b"i"),
    ):
        body = bytes(encode(from_messages([message])))

        assert type(parse_any(body, LIMITS, now_ms=1)) is Batch
