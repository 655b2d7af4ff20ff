"""No history gives a partition two owners or moves it for nothing, and planted bugs are found."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.delivery.group_history import GroupHistory
from tests.kit.examples import examples
from waterclock.delivery import groups
from waterclock.delivery.groups import Assign, Group, Release

HUNT = settings(
    max_examples=1_000,
    stateful_step_count=40,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_no_history_breaks_a_guarantee():
    run_state_machine_as_test(
        GroupHistory, settings=settings(max_examples=examples(100), stateful_step_count=40)
    )


def assign_afresh(original):
    return lambda members, owners: original(members, [None] * len(owners))


def keep_others_than_before(original):
    def assign(members, owners):
        is_odd = len(members) % 2
        return original(members, owners[::-1])[::-1] if is_odd else original(members, owners)

    return assign


def move_without_waiting(original):
    def aim(self, number, target, now_ms):
        part = self._partitions[number]
        if part.owner is not None and part.owner != target:
            part.owner = None
        return original(self, number, target, now_ms)

    return aim


def reuse_a_generation(original):
    def rebalance(self, now_ms, **options):
        effects = original(self, now_ms, **options)
        self._generation -= 1
        return effects

    return rebalance


def release_without_a_word(original):
    def tick(self, now_ms):
        return [e for e in original(self, now_ms) if not isinstance(e, Release)]

    return tick


def assign_before_release(original):
    def move(self, number):
        return sorted(original(self, number), key=lambda e: not isinstance(e, Assign))

    return move


BUGS = [
    (groups, "assign", assign_afresh),
    (groups, "assign", keep_others_than_before),
    (Group, "_aim", move_without_waiting),
    (Group, "_rebalance", reuse_a_generation),
    (Group, "tick", release_without_a_word),
    (Group, "_move", assign_before_release),
]


@pytest.mark.parametrize(("kind", "name", "bug"), BUGS, ids=[bug[2].__name__ for bug in BUGS])
def test_a_planted_bug_is_found(monkeypatch, kind, name, bug):
    monkeypatch.setattr(kind, name, bug(getattr(kind, name)))

    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(GroupHistory, settings=HUNT)
