"""A few rounds of faults on a real Kafka keep every promise; `make burrow-chaos` runs many.

How soon a group goes on after a fault is measured there, and not judged here.
"""

import pytest

from tests.burrow.chaos.clusters import MockCluster, RealCluster
from tests.burrow.chaos.conductor import Conductor
from tests.burrow.chaos.oracle import Oracle, Verdict
from tests.burrow.chaos.plan import Plan, StepKind
from tests.burrow.chaos.planted import PLANTS

TICKS = 12
ROUNDS = [(3, "members"), (7, "broker"), (105, "gentle")]
"""A seed and a kind each; `make burrow-chaos` has more. 105 once showed a last commit that was
given up too soon."""
PLANT_PATIENCE_S = 10.0


@pytest.fixture(scope="session")
def cluster(broker):
    return RealCluster(broker)


def judged(conductor: Conductor) -> Verdict:
    verdict = Oracle(conductor.run()).judge()
    del verdict.findings["slow"]
    return verdict


@pytest.mark.parametrize(("seed", "kind"), ROUNDS)
def test_every_promise_is_kept(cluster, tmp_path, seed, kind):
    plan = Plan.of(seed, kind=kind, ticks=TICKS)

    verdict = judged(Conductor(cluster, plan, tmp_path))

    assert not verdict.findings, str(verdict.findings)


def test_every_promise_is_kept_when_commits_fail_and_the_coordinator_moves(tmp_path):
    plan = Plan.of(1, kind="mock", ticks=TICKS)
    assert {step.act for step in plan.steps()} >= {StepKind.COORDINATOR, StepKind.COMMIT_ERRORS}

    verdict = judged(Conductor(MockCluster(plan.assignor), plan, tmp_path))

    assert not verdict.findings, str(verdict.findings)


def test_a_planted_bug_is_found(cluster, tmp_path):
    plant = PLANTS["no_last_commit"]
    conductor = Conductor(
        cluster, plant.plan(1), tmp_path, plant="no_last_commit", patience_s=PLANT_PATIENCE_S
    )

    assert plant.gives_away <= set(judged(conductor).findings)
