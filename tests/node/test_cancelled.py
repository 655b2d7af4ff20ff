"""Cancels are remembered, the last of them, and cheaply asked for."""

from random import Random

import numpy as np

from tests.node.timed_partition import int64s
from waterclock.node.cancelled import Cancelled


def remembered(cancelled: Cancelled, offsets: list[int]) -> list[int]:
    return [int(offset) for offset in int64s(offsets)[cancelled.has(int64s(offsets))]]


def test_what_was_cancelled_is_remembered_in_any_order():
    cancelled = Cancelled()
    assert remembered(cancelled, [1, 2]) == []

    cancelled.add(int64s([5, 2, 9]))
    cancelled.add(int64s([7]))
    cancelled.add(int64s([1, 3]))

    assert remembered(cancelled, [9, 8, 7, 6, 5, 4, 3, 2, 1]) == [9, 7, 5, 3, 2, 1]
    assert remembered(cancelled, []) == []
    assert len(cancelled) == 6


def test_many_single_cancels_are_kept_in_few_pieces():
    cancelled = Cancelled(offsets_max=4_096)
    offsets = list(range(10_000))
    Random(7).shuffle(offsets)

    for offset in offsets:
        cancelled.add(int64s([offset]))

    assert len(cancelled._pieces) <= 32
    assert 3_500 <= len(cancelled) <= 4_096
    last = offsets[-len(cancelled) :]
    assert remembered(cancelled, offsets) == last


def test_the_oldest_are_forgotten_but_never_those_just_added():
    cancelled = Cancelled(offsets_max=10)
    cancelled.add(np.arange(8))
    cancelled.add(np.arange(8, 12))

    assert remembered(cancelled, list(range(12))) == [8, 9, 10, 11]
    cancelled.add(np.arange(20, 40))
    assert remembered(cancelled, list(range(40))) == list(range(20, 40))
