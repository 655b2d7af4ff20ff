"""The oracle says nothing of a good round, and names what is wrong with a bad one."""

from typing import Any

import pytest

from tests.dispatch.chaos.history import Entry, History, LeaderEpoch, Letter, Performed, Published
from tests.dispatch.chaos.oracle import judge
from tests.dispatch.chaos.plan import Fault, Plan, SourceKind, Step
from tests.dispatch.chaos.report import is_late


def plan_of(source_kind: SourceKind = "stream") -> Plan:
    return Plan(seed=1, number=0, source_kind=source_kind, theme="", steps=(), deliveries_max=4)


def history(source_kind: SourceKind = "stream", **parts: Any) -> History:
    """Three messages, the last of them spoiled; all where they belong unless told otherwise."""
    usual: dict[str, Any] = {
        "published": [
            Published(0, "", 10.0, 10.1, True),
            Published(1, "", 11.0, 11.1, True),
            Published(2, "spoiled", 12.0, 12.1, True),
        ],
        "entries": [Entry(0, 100, "worker-1"), Entry(1, 200, "worker-2")],
        "dead_letters": [Letter(2, "no JSON", 1)],
    }
    return History(plan_of(source_kind), **{**usual, **parts})


def found(said: History) -> dict[str, int]:
    return dict(judge(said).findings)


def fault(kind: Fault, from_s: float, to_s: float, **more: Any) -> Performed:
    return Performed(Step(0, kind), from_s, to_s, **more)


def counts(at: float = 20.0, **said: int) -> dict[str, object]:
    return {"at": at, "what": "counts", "epoch": 0, **said}


@pytest.mark.parametrize("source_kind", ["stream", "pubsub"])
def test_a_round_where_all_is_in_its_place_is_good(source_kind):
    assert found(history(source_kind)) == {}


@pytest.mark.parametrize("source_kind", ["stream", "pubsub"])
def test_a_message_that_is_nowhere_is_lost(source_kind):
    assert found(history(source_kind, entries=[Entry(1, 200, "worker-2")])) == {"lost": 1}


def test_a_message_redis_did_not_confirm_may_be_nowhere():
    published = [Published(0, "", 10.0, 10.1, False)]

    assert found(history(published=published, entries=[], dead_letters=[])) == {}


def test_a_stream_loses_nothing_even_when_redis_restarts():
    said = history(performed=[fault(Fault.REDIS_RESTART, 9.9, 10.5)], entries=[Entry(1, 1, "w")])

    assert found(said) == {"lost": 1}


def test_a_channel_may_lose_in_a_gap_that_somebody_counted():
    parts = {
        "performed": [fault(Fault.REDIS_RESTART, 9.9, 10.5)],
        "entries": [Entry(1, 200, "worker-2")],
    }

    counted = history("pubsub", **parts, journals={"dispatcher-1": [counts(gaps=1)]})
    silenced = history("pubsub", **parts, journals={"dispatcher-1": [counts(gaps=0)]})

    assert found(counted) == {}
    assert judge(counted).counts["lost in a gap"] == 1
    assert found(silenced) == {"uncounted": 1}


def test_a_channel_may_not_lose_what_came_long_after_the_gap():
    said = history(
        "pubsub",
        performed=[fault(Fault.REDIS_RESTART, 5.0, 6.0)],
        entries=[Entry(1, 200, "worker-2")],
        journals={"dispatcher-1": [counts(gaps=1)]},
    )

    assert found(said) == {"lost": 1}


def test_a_kill_loses_nothing_of_a_channel_while_a_standby_has_listened():
    parts = {
        "performed": [fault(Fault.LEADER_KILL, 10.0, 10.0, target="dispatcher-1")],
        "entries": [Entry(1, 200, "worker-2")],
    }
    hot = {"dispatcher-2": [counts(1.0, gaps=1), counts(20.0, gaps=1)]}
    cold = {"dispatcher-2": [counts(9.9, gaps=1), counts(20.0, gaps=1)]}

    assert found(history("pubsub", **parts, journals=hot)) == {"lost": 1}
    assert found(history("pubsub", **parts, journals=cold)) == {}


def test_repeats_are_found_wherever_they_are():
    entries = [Entry(0, 1, "w"), Entry(0, 1, "w"), Entry(1, 1, "w")]
    dead_letters = [Letter(2, "no JSON", 1), Letter(2, "no JSON", 1), Letter(1, "worn", 4)]

    said = found(history(entries=entries, dead_letters=dead_letters))

    assert said == {"written twice": 1, "dead-lettered twice": 1, "written and dead-lettered": 1}


def test_what_can_be_processed_is_not_dead_lettered_before_all_its_deliveries():
    entries = [Entry(0, 1, "w")]

    soon = history(entries=entries, dead_letters=[Letter(1, "?", 3), Letter(2, "no JSON", 1)])
    worn = history(entries=entries, dead_letters=[Letter(1, "?", 4), Letter(2, "no JSON", 1)])

    assert found(soon) == {"dead-lettered too soon": 1}
    assert found(worn) == {}


def test_poison_is_not_written():
    entries = [Entry(0, 1, "w"), Entry(1, 1, "w"), Entry(2, 1, "w")]

    assert found(history(entries=entries, dead_letters=[])) == {"poison written": 1}


def test_a_message_nobody_published_is_found():
    entries = [Entry(0, 1, "w"), Entry(1, 1, "w"), Entry(9, 1, "w")]

    assert found(history(entries=entries)) == {"invented": 1}


def test_an_epoch_that_writes_after_a_higher_one_is_found_in_each_stream_for_itself():
    apart = [Entry(0, 200, "w", stream=0), Entry(1, 100, "w", stream=1)]
    mixed = [Entry(0, 200, "w", stream=0), Entry(1, 100, "w", stream=0)]

    assert found(history(entries=apart)) == {}
    assert found(history(entries=mixed)) == {"two epochs": 1}


def test_a_worker_that_obeys_an_old_leader_is_found():
    lines = [
        {"at": 1.0, "what": "followed", "epoch": 100},
        {"at": 2.0, "what": "followed", "epoch": 200},
        {"at": 3.0, "what": "accepted", "epoch": 100},
    ]

    assert found(history(journals={"worker-1": lines})) == {"old epoch accepted": 1}


def test_what_hangs_and_who_stumbles_is_found():
    said = judge(history(is_settled=False), errors=["ValueError: planted"])

    assert dict(said.findings) == {"unsettled": 1, "error": 1}


def test_a_take_over_is_measured_from_the_kill_to_the_next_epoch():
    said = history(
        performed=[fault(Fault.LEADER_KILL, 10.0, 10.0, epoch=100)],
        leader_epochs=[
            LeaderEpoch(1.0, 100, "dispatcher-1"),
            LeaderEpoch(11.6, 200, "dispatcher-2"),
        ],
    )

    (taken,) = judge(said).take_overs

    assert taken.seconds == pytest.approx(1.6)
    assert is_late(taken), "the lease is 1 s"


def test_a_take_over_is_not_measured_while_redis_is_away():
    said = history(
        performed=[
            fault(Fault.LEADER_KILL, 10.0, 10.0, epoch=100),
            fault(Fault.REDIS_RESTART, 10.2, 12.0),
        ],
        leader_epochs=[
            LeaderEpoch(1.0, 100, "dispatcher-1"),
            LeaderEpoch(13.0, 200, "dispatcher-2"),
        ],
    )

    assert judge(said).take_overs == []
