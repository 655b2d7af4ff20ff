"""Which error a program ends with, of several that its tasks ended with."""

import pytest

from waterclock.model.errors import BadInput, Unavailable
from waterclock.runtime.lifecycle import first_error, raise_single

BUG, OURS, DISK = KeyError("bug"), BadInput("ours"), OSError("disk")


def test_the_first_error_of_ours_goes_before_others():
    nested = ExceptionGroup("in a task", [BUG, ExceptionGroup("deeper", [DISK, OURS])])

    assert first_error(ExceptionGroup("all", [BUG, nested, Unavailable("later")])) is OURS


def test_without_one_of_ours_the_first_of_all_is_named():
    assert first_error(ExceptionGroup("all", [ExceptionGroup("in a task", [DISK]), BUG])) is DISK


def test_other_kinds_may_be_preferred():
    assert first_error(ExceptionGroup("all", [BUG, DISK, OURS]), (BadInput, OSError)) is DISK


def test_a_single_error_is_raised_as_it_was():
    with pytest.raises(BadInput) as raised:
        raise_single(ExceptionGroup("all", [ExceptionGroup("in a task", [OURS])]))

    assert raised.value is OURS


def test_several_errors_are_raised_together():
    with pytest.raises(ExceptionGroup) as raised:
        raise_single(ExceptionGroup("all", [OURS, BUG]))

    assert raised.value.exceptions == (OURS, BUG)
