"""Calls between nodes in bytes: what is said comes back, and any bytes are calls or an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.remote_calls import (
    END,
    MESSAGE,
    PARTITIONS_MAX,
    BadCall,
    CallHead,
    Failure,
    Item,
    ItemDecoder,
    UnforeseenElsewhere,
    end,
    message,
    rights,
)
from waterclock.model import errors as tree
from waterclock.model.errors import (
    BadInput,
    LimitExceeded,
    NotLeader,
    OffsetOutOfRange,
    Unavailable,
    UnknownTopic,
    WaterclockError,
)

numbers = st.integers(0, 2**32 - 1)


def test_a_call_is_these_bytes():
    head = CallHead("Broker/Fetch", (3, 7))

    assert head.encode() == (
        b"\x00\x02" b"\x00\x00\x00\x03" b"\x00\x00\x00\x07" b"\x0cBroker/Fetch"
    )  # fmt: skip
    assert message(b"abc") == b"\x00\x00\x00\x00\x03abc"
    assert rights(b"{}") == b"\x03\x00\x00\x00\x02{}"
    assert rights(b"") == b""
    assert end() == b"\x01\x00\x00\x00\x00"
    failed = end(Failure("no", "Busy", {"n": 1}))
    assert failed[5:] == b'{"text":"no","error":"Busy","facts":{"n":1}}'


@given(st.text(max_size=60), st.lists(numbers, max_size=PARTITIONS_MAX), st.binary())
def test_a_head_is_read_as_it_was_written(method, partitions, rest):
    head = CallHead(method, tuple(partitions))
    data = head.encode()

    assert CallHead.decode(data + rest) == (head, len(data))
    for cut in range(0, len(data), max(1, len(data) // 50)):
        with pytest.raises(BadCall):
            CallHead.decode(data[:cut])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_an_error(data):
    try:
        head, at = CallHead.decode(data)
    except BadCall:
        return
    assert data[:at] == head.encode()


@given(st.lists(st.binary(max_size=50)), st.integers(1, 20))
def test_items_are_whole_however_they_are_cut(bodies, size):
    data = b"".join(map(message, bodies)) + end()
    decoder = ItemDecoder()

    found = [
        item for at in range(0, len(data), size) for item in decoder.feed(data[at : at + size])
    ]

    assert found == [*(Item(MESSAGE, body) for body in bodies), Item(END, b"")]
    assert decoder.is_between


@given(st.binary(max_size=100))
def test_any_bytes_are_items_or_an_error(data):
    decoder = ItemDecoder()
    try:
        for item in decoder.feed(data):
            assert item.kind == MESSAGE or item.failure is None or item.failure.text is not None
    except BadCall:
        return


@pytest.mark.parametrize(
    "error",
    [
        UnknownTopic("orders"),
        LimitExceeded("key bytes", 5, got=6),
        OffsetOutOfRange(9, start=1, end=3),
        NotLeader("orders/0", leader="b"),
        BadInput("page: is none"),
    ],
)
def test_an_error_is_raised_again_as_it_was(error):
    data = end(Failure.of(error))
    (item,) = ItemDecoder().feed(data)
    assert item.failure is not None

    again = item.failure.exception()

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_every_error_of_the_tree_can_be_raised_again():
    kinds = [k for k in vars(tree).values() if isinstance(k, type)]
    ours = [kind for kind in kinds if issubclass(kind, WaterclockError)]

    # A node ends when its disk fails: but not because another's did.
    raised = [tree.Fenced if kind is tree.StorageFailed else kind for kind in ours]
    assert [type(Failure("x", kind.__name__).exception()) for kind in ours] == raised


def test_an_error_that_is_a_kind_of_another_is_told_as_that():
    class Odd(BadInput):
        """Of some module."""

    assert Failure.of(Odd("it is")) == Failure("it is", "BadInput")
    assert Failure.of(BadCall("it is")).error == "BadInput"


def test_a_bug_elsewhere_keeps_its_id():
    error = Failure("something unforeseen", facts={"error_id": "ab12"}).exception()

    assert isinstance(error, UnforeseenElsewhere)
    assert error.error_id == "ab12"
    again = Failure.of(error).exception()  # who was asked had asked another
    assert isinstance(again, UnforeseenElsewhere)
    assert again.error_id == "ab12"


def test_an_error_of_a_later_release_can_be_tried_again():
    assert type(Failure("moved", "LaterKind").exception()) is Unavailable
