"""A few rounds with real processes and a real Redis; `make dispatch-chaos` plays a hundred."""

import pytest

from tests.dispatch.chaos.plan import Plan
from tests.dispatch.chaos.planted import PLANTS
from tests.dispatch.chaos.rounds import Rounds

SEED = 1


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    with Rounds(tmp_path_factory.mktemp("chaos")) as played:
        yield played


@pytest.mark.parametrize(
    ("source_kind", "theme"),
    [
        ("stream", "leader-kill"),
        ("stream", "leader-pause"),
        ("stream", "failover"),
        ("pubsub", "newcomers"),
        ("pubsub", "redis-restart"),
    ],
)
def test_every_promise_is_kept(rounds, source_kind, theme):
    said = rounds.play(Plan.of(SEED, 0, source_kind, theme=theme))

    assert not said.verdict.findings, str(said.verdict.findings)


@pytest.mark.parametrize("name", ["no-dedup", "no-dead-letters"])
def test_a_planted_bug_is_found(rounds, name):
    plant = PLANTS[name]

    said = rounds.play(plant.plan(SEED), plant=name, patience_s=3.0)

    assert plant.gives_away & set(said.verdict.findings)
