"""Segments on their way are put together again, however they are cut, or refused."""

import pytest
from crc32c import crc32c

from waterclock.cluster.replication.copies import (
    CopyHead,
    CopyReader,
    CopyRequest,
    SegmentEnd,
    SegmentPart,
    SegmentSize,
    encode_crc,
)
from waterclock.cluster.replication.lineage import EpochStart
from waterclock.cluster.replication.messages import BadMessage
from waterclock.model.ids import Epoch, Offset

SEGMENTS = (b"first segment", b"", b"and another one")
HEAD = CopyHead(
    Offset(30),
    (EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(4), Offset(17))),
    tuple(SegmentSize(Offset(10 * n), len(data)) for n, data in enumerate(SEGMENTS)),
)


def answer() -> bytes:
    return HEAD.encode() + b"".join(data + encode_crc(crc32c(data)) for data in SEGMENTS)


def read(data: bytes, step: int) -> tuple[CopyHead | None, list[bytes], CopyReader]:
    """Feed an answer in pieces; return what came of it."""
    reader, head, found, now = CopyReader(), None, list[bytes](), b""
    for at in range(0, len(data), step):
        for item in reader.feed(data[at : at + step]):
            match item:
                case CopyHead():
                    head = item
                case SegmentPart(part):
                    now += part
                case SegmentEnd(crc):
                    assert crc == crc32c(now)
                    found.append(now)
                    now = b""
    return head, found, reader


@pytest.mark.parametrize("step", [1, 2, 3, 7, 20, 60, 500])
def test_an_answer_is_read_however_it_is_cut(step):
    head, found, reader = read(answer(), step)

    assert (head, tuple(found)) == (HEAD, SEGMENTS)
    assert reader.is_whole


def test_an_answer_without_segments_is_whole_with_its_head():
    head = HEAD._replace(segments=())
    assert read(head.encode(), 9)[0] == head
    assert read(head.encode(), 9)[2].is_whole


@pytest.mark.parametrize("missing", [1, 5, 20, 60])
def test_an_answer_that_ends_early_is_not_whole(missing):
    assert not read(answer()[:-missing], 50)[2].is_whole


@pytest.mark.parametrize("at", [0, *range(4, 90, 5)])
def test_a_head_that_is_damaged_is_refused(at):
    data = bytearray(answer())
    data[at] ^= 0x40

    with pytest.raises(BadMessage):
        read(bytes(data), 5_000)


def test_more_than_should_come_is_refused():
    with pytest.raises(BadMessage, match="more than"):
        read(answer() + b"x", 1_000)


def test_a_request_is_as_drawn():
    request = CopyRequest(bytes(range(16)), Epoch(7))
    assert request.encode().hex() == "000102030405060708090a0b0c0d0e0f0000000000000007"
    assert CopyRequest.decode(request.encode()) == request

    with pytest.raises(BadMessage):
        CopyRequest.decode(request.encode()[1:])
