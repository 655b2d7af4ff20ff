"""A repeat is never missed and a new message never refused, whatever the fingerprints say."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.append import Int64s, Repeats, find_repeat, find_repeats
from waterclock.log.id_index.fingerprint import Fingerprints
from waterclock.log.id_index.index import IdIndex

IDS = [b"a", b"b", b"c", b"d", b"e"]
Stored = list[tuple[bytes, int]]
"""Id and append time of the message at each offset."""

STORED = st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 9)), max_size=10)
SENT = st.lists(st.sampled_from(IDS), min_size=1, max_size=8)


def alike(message_id: bytes) -> int:
    """Give ids to two fingerprints only, so that most are shared by strangers."""
    return message_id[0] % 2


def distinct(message_id: bytes) -> int:
    return message_id[0]


HASHES = st.sampled_from([alike, distinct])


class Log:
    """A log of ids and the index over it."""

    def __init__(self, stored: Stored, fingerprint: Callable[[bytes], int]) -> None:
        self.stored = stored
        self.fingerprint = fingerprint
        self.index = IdIndex(seed=0, ids_max=1_000)
        self.index.open_segment(0)
        self.index.insert(self.fingerprints([message_id for message_id, _ in stored]), 0)

    def fingerprints(self, ids: list[bytes]) -> Fingerprints:
        return np.array([self.fingerprint(message_id) for message_id in ids], np.uint64)

    def read(self, offsets: Int64s) -> Stored:
        return [self.stored[offset] for offset in offsets.tolist()]

    def repeats(self, sent: list[bytes], oldest_ms: int) -> Repeats | None:
        ids = pa.array(sent, pa.binary())
        fps = self.fingerprints(sent)
        return find_repeats(self.index, ids, fps, self.read, oldest_ms=oldest_ms)

    def first(self, message_id: bytes, oldest_ms: int) -> int | None:
        """Say where an id was first published within the window, by looking at everything."""
        found = (
            offset
            for offset, (known, append_ms) in enumerate(self.stored)
            if known == message_id and append_ms >= oldest_ms
        )
        return next(found, None)


@given(STORED, SENT, HASHES, st.integers(0, 10))
def test_repeats_of_stored_messages_and_within_the_batch_are_exactly_found(
    stored, sent, fingerprint, oldest_ms
):
    log = Log(stored, fingerprint)

    repeats = log.repeats(sent, oldest_ms)

    firsts = [log.first(message_id, oldest_ms) for message_id in sent]
    stored_at = [-1 if first is None else first for first in firsts]
    same_as = [sent.index(m) if sent.index(m) < row else -1 for row, m in enumerate(sent)]
    if max(stored_at) < 0 and max(same_as) < 0:
        assert repeats is None
    else:
        assert repeats is not None
        assert repeats.stored_at.tolist() == stored_at
        assert repeats.same_as.tolist() == same_as
        expected = [max(pair) < 0 for pair in zip(stored_at, same_as, strict=True)]
        assert repeats.is_new.tolist() == expected


@given(STORED, st.sampled_from(IDS), HASHES, st.integers(0, 10))
def test_a_single_message_is_judged_like_a_batch_of_one(stored, message_id, fingerprint, oldest_ms):
    log = Log(stored, fingerprint)

    found = find_repeat(
        log.index, message_id, fingerprint(message_id), log.read, oldest_ms=oldest_ms
    )

    assert found == log.first(message_id, oldest_ms)


def test_an_id_is_known_to_the_millisecond():
    log = Log([(b"a", 500)], distinct)

    at_the_edge, beyond = log.repeats([b"a"], 500), log.repeats([b"a"], 501)

    assert at_the_edge is not None
    assert at_the_edge.stored_at.tolist() == [0]
    assert beyond is None


def test_an_id_published_again_after_its_window_repeats_the_later_message():
    log = Log([(b"a", 100), (b"b", 200), (b"a", 700)], alike)

    repeats = log.repeats([b"b", b"a", b"a"], 500)

    assert repeats is not None
    assert repeats.stored_at.tolist() == [-1, 2, 2]
    assert repeats.same_as.tolist() == [-1, -1, 1]
