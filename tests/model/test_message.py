"""One message as one object."""

import dataclasses

import pytest

from waterclock.model.ids import Millis
from waterclock.model.message import Message


def test_a_message_needs_only_a_value():
    message = Message(b"hello")

    assert message == Message(b"hello", key=None, message_id=None, headers=None, due_ms=None)


def test_key_and_value_cannot_be_swapped_by_position():
    with pytest.raises(TypeError):
        Message(b"value", b"key")  # type: ignore[call-arg]


def test_a_message_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Message(b"hello").value = b"bye"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message(b"hello"), "<Message 5 B>"),
        (Message(b""), "<Message 0 B>"),
        (Message(None, key=b"k"), "<Message tombstone, key b'k'>"),
        (
            Message(
                b"hello",
                key=b"k",
                message_id=b"\x01\xff",
                headers={"trace": b"1", "tenant": b"2"},
                due_ms=Millis(1_700_000_000_000),
            ),
            "<Message 5 B, key b'k', id 01ff, headers trace, tenant, due 1700000000000>",
        ),
    ],
)
def test_repr_is_for_people(message, text):
    assert repr(message) == text
