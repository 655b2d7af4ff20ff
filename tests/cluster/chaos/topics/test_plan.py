"""Plans of rounds of topics: the same for the same seed, and every theme does something."""

import pytest

from tests.cluster.chaos.topics.plan import THEMES, Fault, Plan, Role


@pytest.mark.parametrize("theme", THEMES)
def test_a_plan_is_drawn_by_seed_and_round_alone(theme):
    plan = Plan.of(7, 3, theme=theme)

    assert plan == Plan.of(7, 3, theme=theme)
    assert plan.steps == tuple(sorted(plan.steps, key=lambda step: step.at_ms))
    assert plan.load_ms > max(step.at_ms + step.for_ms for step in plan.steps)


def test_rounds_in_turn_have_every_theme_fault_and_role():
    plans = [Plan.of(1, number) for number in range(len(THEMES))]

    assert [plan.theme for plan in plans] == list(THEMES)
    assert {step.fault for plan in plans for step in plan.steps} == set(Fault)
    assert {step.role for plan in plans for step in plan.steps} == set(Role)
