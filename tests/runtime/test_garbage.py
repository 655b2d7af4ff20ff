"""Cycles are looked for rarely inside a block, and as before after the last."""

import gc
from collections.abc import Iterator

import pytest

from waterclock.runtime.garbage import YOUNG_MAX, collecting_rarely


@pytest.fixture(autouse=True)
def usual() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield (700, 10, 10)
    gc.set_threshold(*before)


def test_inside_a_block_cycles_are_looked_for_rarely() -> None:
    with collecting_rarely():
        assert gc.get_threshold() == (YOUNG_MAX, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_the_last_of_blocks_that_overlap_puts_back_what_was() -> None:
    first, second = collecting_rarely(), collecting_rarely()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (YOUNG_MAX, 10, 10)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("first", [0, YOUNG_MAX + 1])
def test_a_program_that_has_chosen_for_itself_is_left_alone(first: int) -> None:
    gc.set_threshold(first, 5, 5)
    with collecting_rarely():
        assert gc.get_threshold() == (first, 5, 5)
    assert gc.get_threshold() == (first, 5, 5)


def test_what_a_program_sets_inside_a_block_stays() -> None:
    with collecting_rarely():
        gc.set_threshold(1_000, 5, 5)
    assert gc.get_threshold() == (1_000, 5, 5)
