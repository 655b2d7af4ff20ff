"""The first failure of each kind is told at once, the others are counted and told now and then."""

import json

import pytest

from waterclock.model.failure_kinds import KINDS_MAX, FailureKinds, error_text, place_of


def caught(function, *args):
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def typo():
    undefined  # type: ignore[name-defined] # noqa: B018, F821


def boom():
    raise ValueError("no such\ncustomer")


def test_the_first_of_each_kind_is_told_at_once_with_its_place():
    kinds = FailureKinds()

    first = kinds.failed(caught(typo), 0.0)
    second = kinds.failed(caught(boom), 0.0)

    assert first is not None
    assert first.is_first
    assert first.text == (
        "NameError: name 'undefined' is not defined, test_failure_kinds.py:19 in typo"
    )
    assert second is not None
    assert second.text.startswith("ValueError: no such customer, test_failure_kinds.py:23 in boom")
    assert (kinds.count, kinds.in_a_row, kinds.last_error) == (2, 2, second.text)


def test_the_others_are_told_by_number_at_growing_intervals():
    kinds = FailureKinds()
    reports = []
    for second in range(200):
        report = kinds.failed(caught(typo), float(second))
        if report is not None:
            reports.append((second, report.is_first, report.text.rpartition("; ")[2]))

    assert [each[:2] for each in reports] == [
        (0, True), (10, False), (30, False), (70, False), (150, False),
    ]  # fmt: skip
    assert reports[1][2] == "10 more of this kind in 10 s"
    assert reports[2][2] == "20 more of this kind in 20 s"


def test_the_same_type_from_another_line_is_another_kind():
    def other():
        raise ValueError("no such\ncustomer")

    kinds = FailureKinds()

    assert kinds.failed(caught(boom), 0.0) is not None
    assert kinds.failed(caught(other), 0.0) is not None
    assert kinds.failed(caught(boom), 0.0) is None


def test_the_place_is_in_ones_own_code_though_a_library_raised():
    error = caught(lambda: json.loads("{"))

    assert place_of(error).startswith("test_failure_kinds.py:")
    assert place_of(error).endswith(" in <lambda>")


def test_a_function_that_makes_up_kinds_is_not_told_for_ever():
    kinds = FailureKinds()
    made = [type(f"Error{number}", (Exception,), {})() for number in range(KINDS_MAX + 50)]

    reports = [kinds.failed(error, 0.0) for error in made]

    assert sum(report is not None for report in reports) == KINDS_MAX + 1


def test_success_ends_what_failed_in_a_row():
    kinds = FailureKinds()
    kinds.failed(caught(boom), 0.0)
    kinds.succeeded()

    assert (kinds.count, kinds.in_a_row) == (1, 0)


@pytest.mark.parametrize("error", [KeyError(), ValueError("")])
def test_an_error_without_a_text_is_told_by_its_name(error):
    assert error_text(error) == type(error).__name__


def test_an_error_that_cannot_say_what_it_is_is_told_by_its_name():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    assert error_text(Silent()) == "Silent"
    assert place_of(Silent()) == ""
