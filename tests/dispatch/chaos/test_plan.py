"""A round is decided by its seed and number alone, and a hundred rounds have every fault."""

from collections import Counter

import pytest

from tests.dispatch.chaos.plan import THEMES, Fault, Plan, Shares


@pytest.mark.parametrize("source_kind", ["stream", "pubsub"])
def test_the_same_seed_and_number_give_the_same_round(source_kind):
    for number in range(2 * len(THEMES)):
        assert Plan.of(3, number, source_kind) == Plan.of(3, number, source_kind)


def test_another_seed_gives_other_rounds():
    rounds = range(len(THEMES))

    one, other = ([Plan.of(seed, number, "stream") for number in rounds] for seed in (1, 2))

    assert [each.steps for each in one] != [each.steps for each in other]


@pytest.mark.parametrize("source_kind", ["stream", "pubsub"])
def test_a_hundred_rounds_have_every_fault_several_times(source_kind):
    drawn = Counter(
        step.fault for number in range(100) for step in Plan.of(1, number, source_kind).steps
    )

    assert {fault: drawn[fault] for fault in Fault if drawn[fault] < 3} == {}


def test_rounds_are_short():
    rounds = [Plan.of(1, number, "stream") for number in range(100)]

    assert max(each.publish_ms for each in rounds) <= 3_500
    assert all(step.at_ms >= 0 for each in rounds for step in each.steps)


def test_messages_are_special_by_their_share():
    plan = Plan(
        seed=1, number=1, source_kind="stream", theme="", steps=(),
        shares=Shares(slow=100, crash=50),
    )  # fmt: skip

    kinds = Counter(plan.kind_of(n) for n in range(2_000))

    assert kinds["slow"] in range(140, 260)
    assert kinds["crash"] in range(60, 140)
