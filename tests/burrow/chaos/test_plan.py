"""A plan is decided by its seed alone, and never leaves a group without anybody."""

from itertools import pairwise

import pytest

from tests.burrow.chaos.plan import KINDS, SLOTS, Plan, StepKind

SEEDS = range(60)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_decides_everything(kind):
    for seed in SEEDS:
        plan, again = Plan.of(seed, kind=kind), Plan.of(seed, kind=kind)
        assert plan == again
        assert list(plan.steps()) == list(again.steps())
        assert [plan.nature(number) for number in range(9)] == [
            again.nature(number) for number in range(9)
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_can_be_performed_and_leaves_somebody(kind):
    for seed in SEEDS:
        steps = list(Plan.of(seed, kind=kind).steps())
        assert all(one.tick <= next_.tick for one, next_ in pairwise(steps))
        members: set[int] = set()
        for step in steps:
            match step.act:
                case StepKind.JOIN:
                    assert step.slot not in members
                    members.add(step.slot)
                case StepKind.LEAVE | StepKind.KILL:
                    members.remove(step.slot)
                case StepKind.PAUSE:
                    assert step.slot in members
            assert len(members) <= SLOTS
        assert members


def test_all_kinds_assignors_and_orders_have_their_turn():
    plans = [Plan.of(seed) for seed in range(20)]

    assert {plan.kind for plan in plans} == {"gentle", "members", "broker"}
    assert len({(plan.assignor, plan.order) for plan in plans}) == 9
    kinds = {step.act for plan in plans for step in plan.steps()}
    assert kinds == set(StepKind) - {StepKind.COORDINATOR, StepKind.COMMIT_ERRORS}
