"""Raw clients of the peers: every answer is counted once, and no more is sent than the window."""

import socket
import struct
import threading

import pytest

from benchmarks.peers.nats import atomic_batch
from benchmarks.peers.rabbitmq import BODY, Confirms, Frames, frame, method
from benchmarks.peers.redis import STREAM, request, whole_answer
from benchmarks.peers.wire import VALUE, Marks, drain, pump


@pytest.fixture
def wires():
    here, there = socket.socketpair()
    with here, there:
        there.settimeout(10)
        yield here, there


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
def test_a_mark_is_counted_once_wherever_it_is_cut(size):
    data = b"..seq=1,seq=2" * 5
    marks = Marks(b"seq=")

    assert sum(marks.feed(data[at : at + size]) for at in range(0, len(data), size)) == 10


def test_a_refusal_ends_the_run():
    marks = Marks(b"+", bad=b"-ERR")
    marks.feed(b"+-E")

    with pytest.raises(RuntimeError, match="-ERR no such key"):
        marks.feed(b"-ERR no such key")


class Peer(threading.Thread):
    """Answers each byte by a byte, once it has seen as many as it waits for."""

    def __init__(self, wire, total, waits_for):
        super().__init__()
        self._wire = wire
        self._total = total
        self._waits_for = waits_for
        self.unanswered_max = 0

    def run(self):
        seen = answered = 0
        while answered < self._total:
            seen += len(self._wire.recv(4096))
            self.unanswered_max = max(self.unanswered_max, seen - answered)
            if seen - answered >= min(self._waits_for, self._total - answered):
                self._wire.sendall(b"+" * (seen - answered))
                answered = seen


def test_no_more_batches_are_unanswered_than_the_window_allows(wires):
    here, there = wires
    # It answers only when three batches of ten are there: less would never be answered.
    peer = Peer(there, 100, waits_for=30)
    peer.start()

    pump(here, [b"m" * 10] * 10, answers=10, window=3, feed=Marks(b"+").feed)

    peer.join()
    assert peer.unanswered_max == 30


def test_a_reader_asks_for_no_more_than_the_window_and_stops_at_the_end(wires):
    here, there = wires
    peer = Peer(there, 10, waits_for=2)
    peer.start()

    drain(here, messages=10, batch=1, window=2, feed=Marks(b"+").feed, request=lambda: b"?")

    peer.join()
    assert peer.unanswered_max == 2


def test_confirms_count_each_tag_once_in_any_order():
    confirms = Confirms()

    def ack(tag, is_multiple):
        return method(60, 80, struct.pack(">QB", tag, is_multiple))

    assert confirms.feed(ack(3, 0) + ack(5, 0)) == 2
    assert confirms.feed(ack(4, 1)[:9]) == 0
    assert confirms.feed(ack(4, 1)[9:]) == 3
    assert confirms.feed(ack(6, 1)) == 1


def test_a_frame_that_is_cut_waits_for_the_rest():
    frames = Frames()
    data = frame(BODY, b"one") + frame(BODY, b"two")

    assert frames.feed(data[:12]) == [(BODY, b"one")]
    assert frames.feed(data[12:]) == [(BODY, b"two")]


def test_an_answer_of_redis_is_whole_when_its_last_message_is():
    rows = b"".join(
        b"*2\r\n$3\r\n1-%d\r\n*2\r\n$1\r\nd\r\n$128\r\n%s\r\n" % (n, VALUE) for n in (1, 2)
    )
    answer = b"*1\r\n*2\r\n$6\r\n%s\r\n*2\r\n%s" % (STREAM.encode(), rows)

    assert whole_answer(answer) == 2
    assert [whole_answer(answer[:size]) for size in range(len(answer))] == [None] * len(answer)


def test_a_request_to_redis_says_the_size_of_each_word():
    assert request("XADD", STREAM, 7) == b"*3\r\n$4\r\nXADD\r\n$6\r\nstream\r\n$1\r\n7\r\n"


def test_an_atomic_batch_is_answered_once():
    batch = atomic_batch(7)

    assert batch.count(b"HPUB s ") == 1000
    assert batch.count(b" _INBOX.a ") == batch.count(b"Nats-Batch-Commit: 1") == 1
