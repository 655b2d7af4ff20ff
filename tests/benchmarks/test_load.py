"""What the clients of the streams benchmark send and make of answers."""

import pytest

from benchmarks.load import BODY, BODY_BYTES, answer_bytes, get, post
from benchmarks.peers.nchan import NchanTalk
from benchmarks.polling import message, number_of

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nEtag: 0\r\n\r\nhello"


def test_an_answer_ends_where_its_length_says():
    assert answer_bytes(ANSWER + b"HTTP/1.1 200 OK\r\n") == len(ANSWER)


@pytest.mark.parametrize("cut", range(len(ANSWER)))
def test_of_an_answer_in_pieces_more_is_to_come(cut):
    assert answer_bytes(ANSWER[:cut]) is None


def test_an_answer_without_a_length_has_no_body():
    assert answer_bytes(b"HTTP/1.1 204 No Content\r\n\r\nHTTP") == 27


def test_all_messages_are_of_one_size_and_are_told_apart_by_their_numbers():
    assert len(BODY) == len(message(0)) == len(message(99_999_999)) == BODY_BYTES
    assert [number_of(message(number)) for number in (0, 7, 123_456)] == [0, 7, 123_456]


def test_an_answer_without_a_message_is_no_delivery():
    with pytest.raises(RuntimeError, match="not a message"):
        number_of(ANSWER)


def test_requests_are_whole():
    assert get("/a", b"X: y\r\n") == b"GET /a HTTP/1.1\r\nHost: localhost\r\nX: y\r\n\r\n"
    assert post("/a", b"{}").endswith(b"\r\nContent-Length: 2\r\n\r\n{}")


def test_a_subscriber_of_nchan_goes_on_after_the_message_it_had():
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nLast-Modified: now\r\n"
        b"Connection: keep-alive\r\nEtag: 3\r\n\r\n{}"
    )

    poll = NchanTalk().poll("a", 0, answer)

    assert b"\r\nIf-Modified-Since: now\r\nIf-None-Match: 3\r\n" in poll
