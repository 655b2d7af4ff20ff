"""Many requests over one link: whole, in order, within their credit, none in another's way."""

import itertools
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.peer_link.channels import (
    OUTPUT_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES,
    Cancelled,
    Channels,
)
from waterclock.cluster.peer_link.frames import BadFrame, Decoder, Frame, Kind
from waterclock.model.errors import Unreachable


class Heard:
    """A listener that keeps what it hears, and gives credit for it if told to."""

    def __init__(self, channel=None, *, is_reading=True):
        self.channel = channel
        self.is_reading = is_reading
        self.status = None
        self.body = b""
        self.is_over = False
        self.error = None
        self.has_drained = False

    def answered(self, status, body, *, is_last):
        assert self.status is None
        self.status = status
        self.piece(body, is_last=is_last)

    def piece(self, body, *, is_last):
        assert not self.is_over
        self.body += body
        self.is_over = is_last
        if self.is_reading and self.channel is not None:
            self.channel.grant(len(body))

    def failed(self, error):
        assert self.error is None
        self.error = error

    def drained(self):
        self.has_drained = True


class Side:
    """One end of a link that is two queues of bytes."""

    def __init__(self, *, is_dialler):
        self.outputs = 0
        self.requests = []
        self.decoder = Decoder()
        self.decoder.is_admitted = True
        self.channels = Channels(
            is_dialler=is_dialler, on_request=self._requested, on_output=self._count
        )
        self.is_reading = True

    def _count(self):
        self.outputs += 1

    def _requested(self, channel, method, body, is_last):
        heard = Heard(channel, is_reading=self.is_reading)
        channel.listener = heard
        heard.piece(body, is_last=is_last)
        self.requests.append((channel, method, heard))

    def asks(self, method=1, body=b"", *, is_last=True, is_reading=True):
        heard = Heard(is_reading=is_reading)
        heard.channel = self.channels.open(method, body, heard, is_last=is_last)
        return heard

    def takes(self, data):
        for frame in self.decoder.feed(data):
            self.channels.receive(frame)


class Two:
    def __init__(self):
        self.one, self.other = Side(is_dialler=True), Side(is_dialler=False)

    def settle(self):
        """Carry over all that is said, until nobody has anything to say."""
        rounds = 0
        while True:
            said = [b"".join(side.channels.output()) for side in (self.one, self.other)]
            if not any(said):
                return rounds
            rounds += 1
            self.other.takes(said[0])
            self.one.takes(said[1])


@pytest.fixture
def two():
    return Two()


def test_a_request_is_answered(two):
    heard = two.one.asks(5, b"how are you")
    two.settle()
    ((channel, method, request),) = two.other.requests
    assert (method, request.body, request.is_over) == (5, b"how are you", True)
    channel.answer(200, b"well")
    two.settle()
    assert (heard.status, heard.body, heard.is_over) == (200, b"well", True)
    assert len(two.one.channels) == len(two.other.channels) == 0


@given(st.data())
def test_bodies_of_any_length_come_whole_and_in_order_over_many_channels(data):
    two = Two()
    sizes = st.integers(0, WINDOW_BYTES * 3)
    asked = []
    for number in range(data.draw(st.integers(1, 5))):
        side = data.draw(st.sampled_from([two.one, two.other]))
        body = bytes([number]) * data.draw(sizes)
        asked.append((side.asks(number, body), body))
        if data.draw(st.booleans()):
            two.settle()
    two.settle()
    answers = {}
    for channel, method, request in two.one.requests + two.other.requests:
        assert request.is_over
        assert request.body == asked[method][1]
        answers[method] = parts = data.draw(st.lists(sizes, min_size=1, max_size=3))
        channel.answer(method, b"a" * parts[0], is_last=len(parts) == 1)
        for last, size in enumerate(parts[1:], 2):
            channel.send(b"b" * size, is_last=last == len(parts))
    two.settle()
    for number, (heard, _) in enumerate(asked):
        first, *more = answers[number]
        assert (heard.status, heard.is_over) == (number, True)
        assert heard.body == b"a" * first + b"b" * sum(more)
    assert len(two.one.channels) == len(two.other.channels) == 0


def test_who_is_not_read_is_sent_no_more_than_its_window(two):
    heard = two.one.asks(is_reading=False)
    two.settle()
    ((channel, _, _),) = two.other.requests
    channel.answer(200, b"x" * WINDOW_BYTES * 4, is_last=False)
    two.settle()
    assert len(heard.body) == WINDOW_BYTES
    assert channel.is_blocked
    heard.channel.grant(10)
    two.settle()
    assert len(heard.body) == WINDOW_BYTES + 10
    assert not channel.listener.has_drained
    heard.channel.grant(WINDOW_BYTES * 3)
    two.settle()
    assert channel.listener.has_drained
    assert not channel.is_blocked


def test_a_long_body_does_not_keep_a_short_one_waiting(two):
    two.one.asks(1, b"x" * OUTPUT_BYTES * 4)
    two.one.asks(2, b"short")
    first = b"".join(two.one.channels.output())
    assert len(first) < OUTPUT_BYTES + 2 * PIECE_BYTES
    two.other.takes(first)
    assert [method for _, method, heard in two.other.requests if heard.is_over] == [2]


def test_a_link_asks_to_be_written_once_however_much_is_said(two):
    for _ in range(100):
        two.one.asks()
    assert two.one.outputs == 1


def test_either_side_may_cancel_and_what_is_on_its_way_is_ignored(two):
    heard = two.one.asks()
    two.settle()
    ((channel, _, request),) = two.other.requests
    channel.answer(200, b"too late", is_last=False)
    heard.channel.cancel("I am gone")
    two.settle()
    assert heard.status is None
    assert str(request.error) == "I am gone"
    channel.send(b"more")  # nobody is there, and nobody minds
    assert two.settle() == 0

    heard = two.one.asks()
    two.settle()
    channel = two.other.requests[-1][0]
    channel.cancel()
    two.settle()
    assert isinstance(heard.error, Cancelled)
    assert len(two.one.channels) == len(two.other.channels) == 0


def test_an_answer_may_end_before_its_request_has(two):
    heard = two.one.asks(body=b"x" * WINDOW_BYTES * 2)
    two.other.is_reading = False
    two.settle()
    ((channel, _, _),) = two.other.requests
    channel.answer(413)
    two.settle()
    assert heard.status == 413
    assert len(two.one.channels) == len(two.other.channels) == 0
    assert two.settle() == 0


def test_when_the_link_is_lost_everybody_who_waits_hears_of_it(two):
    asked = [two.one.asks() for _ in range(3)]
    two.settle()
    for side in (two.one, two.other):
        side.channels.lose(Unreachable("it broke"))
    assert all(str(heard.error) == "it broke" for heard in asked)
    assert all(request.error for _, _, request in two.other.requests)
    assert len(two.one.channels) == len(two.other.channels) == 0


def test_too_many_requests_at_once_are_cancelled_and_the_others_go_on(two, monkeypatch):
    monkeypatch.setattr("waterclock.cluster.peer_link.channels.CHANNELS_MAX", 2)
    asked = [two.one.asks() for _ in range(3)]
    two.settle()
    assert [heard.error and str(heard.error) for heard in asked] == [
        None, None, "2 requests are open already",
    ]  # fmt: skip
    two.other.requests[0][0].answer(200)
    two.settle()
    two.one.asks()
    two.settle()
    assert len(two.other.requests) == 3


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([(Kind.REQUEST, 2, b"\1\0")], "cannot be opened"),
        ([(Kind.REQUEST, 1, b"\1\0"), (Kind.REQUEST, 1, b"\1\0")], "cannot be opened"),
        ([(Kind.REQUEST, 1, b"\1")], "REQUEST is too short"),
        ([(Kind.REQUEST, 1, b"\2\0")], "a flag of 2"),
        ([(Kind.PIECE, 1, b"\1")], "never opened"),
        ([(Kind.ANSWER, 2, b"\1\0\0")], "never opened"),
        ([(Kind.REQUEST, 1, b"\1\0"), (Kind.PIECE, 1, b"\1")], "a PIECE of nothing"),
        ([(Kind.REQUEST, 1, b"\0\0"), (Kind.PIECE, 1, b"")], "PIECE is too short"),
        ([(Kind.REQUEST, 1, b"\0\0"), (Kind.ANSWER, 1, b"\0\0\0")], "a second ANSWER"),
        ([(Kind.REQUEST, 1, b"\0\0"), (Kind.ANSWER, 1, b"\0")], "ANSWER is too short"),
        ([(Kind.REQUEST, 1, b"\0\0" + b"x" * (WINDOW_BYTES + 1))], "1 bytes beyond the credit"),
        ([(Kind.REQUEST, 1, b"\0\0"), (Kind.CREDIT, 1, b"\0")], "CREDIT is 4 bytes"),
        ([(Kind.REQUEST, 1, b"\0\0"), (Kind.CANCEL, 1, b"x" * 1_025)], "a reason of 1025 bytes"),
    ],
)
def test_what_makes_no_sense_ends_the_link_by_name(two, frames, reason):
    *before, last = (Frame(*frame) for frame in frames)
    for frame in before:
        two.other.channels.receive(frame)
    with pytest.raises(BadFrame, match=reason):
        two.other.channels.receive(last)


kinds = st.sampled_from([Kind.REQUEST, Kind.ANSWER, Kind.PIECE, Kind.CREDIT, Kind.CANCEL])


@given(
    st.lists(
        st.tuples(
            kinds, st.integers(1, 6), st.binary(max_size=6) | st.just(b"\0\0" + b"x" * 40_000)
        )
    )
)
def test_any_frames_are_taken_or_end_the_link(frames):
    two = Two()
    for _ in range(2):
        two.other.asks()
    with suppress(BadFrame):
        for frame in frames:
            two.other.channels.receive(Frame(*frame))
    held = sum(len(request.body) for _, _, request in two.other.requests)
    assert held <= (len(frames) + 2) * 40_000


def test_a_waiting_request_is_small_on_either_side(two):
    for _ in range(100):
        two.one.asks()
    two.settle()
    for side in (two.one, two.other):
        channels = side.channels
        sizes = (sys.getsizeof(channel) for channel in channels._open.values())
        assert sum(sizes) + sys.getsizeof(channels._open) < 100 * 300
    assert not any(itertools.chain(two.one.channels._ready, two.other.channels._ready))


def test_a_channel_that_has_ended_does_not_hold_its_listener():
    two = Two()
    asking = two.one.asks(body=b"question")
    two.settle()
    channel, _, _ = two.other.requests[0]
    channel.answer(200, b"answer")
    two.settle()

    assert asking.channel.listener is channel.listener is None
