"""The oracle says nothing of a good round, and names what is wrong with a bad one."""

from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.chaos.history import Era, History, Outcome, Performed, Poll, Sent
from tests.cluster.chaos.oracle import CONVERGED_S, SILENCE_S, SLACK_S, eras_of, judge
from tests.cluster.chaos.plan import Fault, Plan, Step

ALL = frozenset({"a", "b", "c"})
DONE, NOT, UNSURE = Outcome.DONE, Outcome.NOT, Outcome.UNSURE


def owner_of(nodes: frozenset[str], stream: str) -> str:
    """Streams are named by who has them if it is there; else it is the last."""
    return stream[0] if stream[0] in nodes else max(nodes)


def sent(n: int, stream: str = "a-work", outcome: Outcome = DONE, at_s: float = 10.0) -> Sent:
    return Sent(n, stream, "b", at_s, at_s + 0.1, outcome)


def poll(n: int | None, stream: str = "a-work", **parts: Any) -> Poll:
    outcome = NOT if n is None else DONE
    usual = Poll(stream, "c", 10.0, 10.2, 1.0, outcome, n)
    return replace(usual, **parts)


def fault(kind: Fault, node: str, from_s: float = 11.0, to_s: float = 11.0) -> Performed:
    return Performed(Step(0, kind), node, from_s, to_s)


def history(**parts: Any) -> History:
    """Two messages that were received, one kept, two stored: nothing is wrong."""
    usual: dict[str, Any] = {
        "sent": [sent(1), sent(2)],
        "polls": [poll(1), poll(2), poll(None, to_s=11.1)],
        "kept_sent": [sent(3, "a-kept")],
        "kept": {"a-kept": [3]},
        "stored_sent": [replace(sent(n, "a-stored"), position=n - 3) for n in (4, 5)],
        "stored": {"a-stored": [(1, 4), (2, 5)]},
        "eras": [Era(0.0, 100.0, ALL)],
        "heal_s": 1.0,
    }
    return History(Plan(1, 0, "", ()), **{**usual, **parts})


def found(said: History, **more: Any) -> dict[str, int]:
    return dict(judge(said, owner_of, **more).findings)


def test_a_round_in_which_all_came_to_somebody_is_good():
    assert found(history()) == {}


def test_a_receiver_may_not_wait_past_its_timeout():
    late = poll(None, to_s=11.0 + SLACK_S + 0.1)

    assert found(history(polls=[poll(1), poll(2), late])) == {"waited too long": 1}
    assert found(history(polls=[poll(1), poll(2), late], lag_s=0.2)) == {}


def test_a_receiver_of_a_paused_node_is_counted_from_when_that_goes_on():
    late = poll(None, to_s=25.0)
    polls = [poll(1), poll(2), late]

    asked = fault(Fault.PAUSE, "c", 10.5, 24.0)
    another = fault(Fault.PAUSE, "b", 10.5, 24.0)
    long_over = fault(Fault.PAUSE, "c", 10.5, 20.0)
    assert found(history(polls=polls, performed=[asked])) == {}
    assert found(history(polls=polls, performed=[another])) == {"waited too long": 1}
    assert found(history(polls=polls, performed=[long_over])) == {"waited too long": 1}


def test_a_message_may_not_go_to_two_receivers():
    assert found(history(polls=[poll(1), poll(2), poll(1, node="a")])) == {"received twice": 1}


def test_a_message_may_not_come_that_nobody_sent_or_that_was_refused():
    assert found(history(polls=[poll(1), poll(2), poll(99)])) == {"invented": 1}
    assert found(history(polls=[poll(1), poll(2, stream="b-work")])) == {"invented": 1}
    refused = history(sent=[sent(1), sent(2, outcome=NOT)])
    assert found(refused) == {"refused and received": 1}


def test_a_message_that_nobody_acknowledged_may_come_or_not():
    assert found(history(sent=[sent(1), sent(2), sent(6, outcome=UNSURE)])) == {}
    assert found(history(sent=[sent(1), sent(2, outcome=UNSURE)])) == {}


@pytest.mark.parametrize(
    "performed",
    [
        [],
        [fault(Fault.JOIN, "a")],
        [fault(Fault.LEAVE, "a")],
        [fault(Fault.CUT, "a")],
        [fault(Fault.PAUSE, "a")],
        [fault(Fault.LOSS, "a")],
        [fault(Fault.KILL, "b")],
        [fault(Fault.KILL, "a", 9.0, 9.0)],
    ],
)
def test_only_the_death_of_the_node_that_had_it_excuses_a_loss(performed):
    lost = history(polls=[poll(1)], performed=performed)
    lost_from_ring = history(kept={"a-kept": []}, performed=performed)

    assert found(lost) == {"lost": 1}
    assert found(lost_from_ring) == {"lost from a ring": 1}


def test_what_a_node_had_is_lost_with_it():
    said = history(polls=[poll(1)], kept={"a-kept": []}, performed=[fault(Fault.KILL, "a")])

    assert found(said) == {}
    assert judge(said, owner_of).counts["lost with a node"] == 2


def test_a_stream_that_moved_may_be_lost_with_its_new_owner():
    kill = [fault(Fault.KILL, "c", 30.0, 30.0)]
    without_a = [Era(0.0, 12.0, ALL), Era(12.0, 40.0, ALL - {"a"})]

    assert found(history(kept={}, performed=kill, eras=without_a)) == {}
    assert found(history(kept={}, performed=kill)) == {"lost from a ring": 1}


def test_a_node_that_was_no_owner_since_long_before_is_no_excuse():
    kill = [fault(Fault.KILL, "c", 50.0, 50.0)]
    back_s = 10.0 - CONVERGED_S
    long_ago = [Era(-50.0, back_s - 1, ALL - {"a"}), Era(back_s - 1, 99.0, ALL)]
    just_now = [Era(-50.0, back_s + 1, ALL - {"a"}), Era(back_s + 1, 99.0, ALL)]

    assert found(history(kept={}, performed=kill, eras=long_ago)) == {"lost from a ring": 1}
    assert found(history(kept={}, performed=kill, eras=just_now)) == {}


def test_a_receiver_whose_connection_broke_may_have_had_one_message_and_no_more():
    broken = poll(None, outcome=UNSURE)
    both_lost = [sent(1), sent(2), sent(6)]

    assert found(history(polls=[poll(1), broken])) == {}
    assert found(history(sent=both_lost, polls=[poll(1), broken])) == {"lost": 1}
    elsewhere = poll(None, stream="b-work", outcome=UNSURE)
    assert found(history(polls=[poll(1), elsewhere])) == {"lost": 1}
    before = poll(None, outcome=UNSURE, from_s=8.0, to_s=9.0)
    assert found(history(polls=[poll(1), before])) == {"lost": 1}


def test_a_receiver_of_a_node_that_was_given_up_may_have_had_one_message():
    short = [fault(Fault.PAUSE, "c", 10.1, 10.1 + SILENCE_S - 0.1)]
    long = [fault(Fault.PAUSE, "c", 10.1, 10.1 + SILENCE_S + 0.1)]
    of_another = [fault(Fault.PAUSE, "b", 10.1, 10.1 + SILENCE_S + 0.1)]
    polls = [poll(1), poll(None)]

    assert found(history(polls=polls, performed=short)) == {"lost": 1}
    assert found(history(polls=polls, performed=of_another)) == {"lost": 1}
    assert found(history(polls=polls, performed=long)) == {}
    assert judge(history(polls=polls, performed=long), owner_of).counts["lost on the way"] == 1
    assert found(history(kept={}, performed=long)) == {"lost from a ring": 1}


def test_a_ring_has_each_message_once():
    assert found(history(kept={"a-kept": [3, 3]})) == {"kept twice": 1}
    assert found(history(kept={"a-kept": [3, 99]})) == {"invented": 1}


def test_a_store_loses_nothing_even_with_every_node():
    performed = [fault(Fault.KILL, name) for name in ALL]

    said = history(stored={"a-stored": [(1, 4)]}, performed=performed)
    assert found(said) == {"lost from a store": 1}


def test_positions_of_a_stored_stream_have_no_holes_and_stay():
    assert found(history(stored={"a-stored": [(1, 4), (2, 5), (2, 6)]})) == {
        "positions with holes": 1
    }
    assert found(history(stored={"a-stored": [(1, 4), (2, 5), (3, 4)]}))["stored twice"] == 1
    assert found(history(stored={"a-stored": [(1, 5), (2, 4)]})) == {"position changed": 2}


def test_nodes_that_do_not_agree_in_the_end_are_found():
    assert found(history(heal_s=None)) == {"not healed": 1}


def test_what_a_log_says_of_bugs_is_found():
    assert found(history(), errors=["Traceback"]) == {"error": 1}


def test_a_cluster_that_does_next_to_nothing_is_found():
    refused = [sent(n, outcome=NOT) for n in range(20, 30)]

    assert found(history(sent=[sent(1), sent(2), *refused])) == {"idle": 1}
    nothing: dict[str, Any] = {"sent": [], "polls": [], "kept_sent": [], "kept": {}}
    assert found(history(**nothing, stored_sent=[], stored={})) == {"idle": 3}


def test_an_era_ends_with_the_next_and_may_be_seen_in_several_ways():
    halves = [frozenset({"a"}), frozenset({"b", "c"})]

    assert eras_of([(1.0, [ALL]), (2.0, halves)], 9.0) == [
        Era(1.0, 2.0, ALL),
        Era(2.0, 9.0, halves[0]),
        Era(2.0, 9.0, halves[1]),
    ]
