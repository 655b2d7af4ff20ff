"""Replicas are spread, and move only for a reason."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.coordinator.records import MoveRecord, NodeRecord, PartitionRecord
from waterclock.cluster.replication.cluster_view import node_of, replica_of
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.placement import Nodes, Places, Spread, Step


def nodes(**zones: str) -> dict[str, NodeRecord]:
    return {
        name: NodeRecord(peer=f"{name}:1", zone=zone, disk="d", level=1)
        for name, zone in zones.items()
    }


THREE = nodes(a="", b="", c="")
LED = PartitionRecord(epoch=1, state="leading", leader="a:d", replicas=("a:d",))


def ids(*names: str) -> frozenset[ReplicaId]:
    return frozenset(ReplicaId(f"{name}:d") for name in names)


def spread(over: Nodes) -> Spread:
    return Spread(over, load={}, leads={})


def step(
    record: PartitionRecord, *caught_up: str, factor: int = 3, over: Nodes = THREE
) -> Step | None:
    places = Places(record=record, factor=factor, nodes=over, load={}, caught_up=ids(*caught_up))
    return places.next_step()


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 60))
def test_partitions_and_their_leaders_are_shared_out_evenly(count, factor, partitions):
    over = nodes(**{f"n{number}": "" for number in range(count)})
    choosing = spread(over)

    placed = [choosing.chosen(factor) for _ in range(partitions)]

    load = Counter(node_of(each) for replicas in placed for each in replicas)
    leads = Counter(node_of(replicas[0]) for replicas in placed)
    assert all(len(set(replicas)) == min(factor, count) for replicas in placed)
    for counts in (load, leads):
        assert max(counts[name] for name in over) - min(counts[name] for name in over) <= 1


def test_replicas_are_in_as_many_zones_as_there_are():
    over = nodes(a="x", b="x", c="x", d="y", e="z")
    choosing = spread(over)

    for _ in range(10):
        zones = {over[node_of(each)].zone for each in choosing.chosen(3)}
        assert zones == {"x", "y", "z"}


def test_a_partition_grows_one_at_a_time_and_each_learns_before_it_votes():
    assert step(LED) == Step("learn", ReplicaId("b:d"))
    learning = LED.with_learner("b:d")
    assert step(learning) is None
    assert step(learning, "b") == Step("vote", ReplicaId("b:d"))
    voting = learning.with_voter("b:d")
    assert step(voting, "b") == Step("learn", ReplicaId("c:d"))
    whole = voting.with_learner("c:d").with_voter("c:d")
    assert step(whole, "b", "c") is None


def test_a_node_that_leaves_is_given_nothing_to_lead_or_to_copy():
    leaving = msgspec.structs.replace(THREE["a"], is_leaving=True)
    over = {**THREE, "a": leaving}
    led = PartitionRecord(epoch=1, state="leading", leader="b:d", replicas=("a:d", "b:d", "c:d"))
    assert step(led, "a", "c") == Step("hand_over", ReplicaId("a:d"))
    assert step(led, "a", "c", over=over) is None
    assert step(msgspec.structs.replace(led, replicas=("b:d", "c:d")), "c", over=over) is None
    assert {node_of(each) for each in spread(over).chosen(3)} == {"b", "c"}
    assert spread({"a": leaving}).chosen(1) == ("a:d",)


def test_it_does_not_grow_beyond_the_nodes_or_its_factor():
    assert step(LED, factor=1) is None
    assert step(LED, over=nodes(a="")) is None


def test_a_replica_whose_node_has_another_disk_is_replaced_and_one_that_is_away_is_not():
    whole = PartitionRecord(
        epoch=1, state="leading", leader="a:d", replicas=("a:d", "b:d", "c:old")
    )

    assert step(whole, over=nodes(a="", b="")) is None
    assert step(whole) == Step("drop", ReplicaId("c:old"))
    assert step(whole.without("c:old")) == Step("learn", ReplicaId("c:d"))


def test_a_learner_that_is_away_does_not_vote_for_what_it_had():
    learning = LED.with_learner("b:d")
    assert step(learning, "b", over=nodes(a="")) is None
    assert step(learning, "b") == Step("vote", ReplicaId("b:d"))


def test_a_learner_that_is_away_does_not_keep_others_from_learning():
    learning = LED.with_learner("b:d")
    assert step(learning, over=nodes(a="", c="")) == Step("learn", ReplicaId("c:d"))


@pytest.mark.parametrize(("caught_up", "expected"), [(("b",), "b:d"), ((), None)])
def test_the_preferred_leader_leads_again_once_it_has_caught_up(caught_up, expected):
    led = PartitionRecord(epoch=2, state="leading", leader="a:d", replicas=("b:d", "a:d"))

    found = step(led, *caught_up, factor=2)

    assert found == (None if expected is None else Step("hand_over", ReplicaId(expected)))


def test_a_partition_that_is_to_be_everywhere_has_learners_on_all_other_nodes():
    over = nodes(a="", b="", c="", d="")
    record = PartitionRecord(epoch=1, state="leading", leader="a:d", replicas=("a:d", "b:d", "c:d"))
    places = Places(record=record, factor=3, nodes=over, load={}, caught_up=ids("a", "b", "c", "d"))
    everywhere = replace(places, is_everywhere=True)

    assert places.next_step() is None
    assert everywhere.next_step() == Step("learn", ReplicaId("d:d"))
    assert replace(everywhere, record=record.with_learner("d:d")).next_step() is None


# Replicas that are gone for good, and nodes that have less than others

WHOLE = PartitionRecord(epoch=1, state="leading", leader="a:d", replicas=("a:d", "b:d", "c:d"))


def steps(places: Places) -> list[Step]:
    """Return what is done until nothing is left to do, if each step works out."""
    done: list[Step] = []
    while (step := places.next_step()) is not None:
        done.append(step)
        assert len(done) < 10, done
        places = after(places, step)
    return done


def after(places: Places, step: Step) -> Places:
    """Return what there is once a step is done."""
    record, load = places.record, Counter(dict(places.load))
    match step.do:
        case "learn":
            record = record.with_learner(step.replica)
            load[node_of(step.replica)] += 1
        case "vote":
            record = record.with_voter(step.replica)
        case "drop":
            if step.replica == record.leader:
                others = [each for each in record.replicas if each != step.replica]
                return replace(places, record=msgspec.structs.replace(record, leader=others[0]))
            record = record.without(step.replica)
            load[node_of(step.replica)] -= 1
        case "demote":
            if step.replica == record.leader:
                others = [each for each in record.replicas if each != step.replica]
                return replace(places, record=msgspec.structs.replace(record, leader=others[0]))
            record = record.with_demoted(step.replica)
        case "prefer":
            record = record.preferring(step.replica)
        case "hand_over":
            record = msgspec.structs.replace(record, leader=step.replica)
    return replace(places, record=record, load=load)


def test_a_lost_replica_is_replaced_before_it_is_dropped_and_never_without_another_node():
    over = nodes(a="", b="", d="")
    lost = Places(
        record=WHOLE,
        factor=3,
        nodes=over,
        load={},
        caught_up=ids("a", "b", "d"),
        lost=ids("c"),
    )

    assert [(each.do, node_of(each.replica)) for each in steps(lost)] == [
        ("learn", "d"),
        ("vote", "d"),
        ("drop", "c"),
    ]
    assert replace(lost, nodes=nodes(a="", b="")).next_step() is None
    assert replace(lost, lost=frozenset()).next_step() is None


def test_of_as_many_as_there_can_be_a_lost_one_goes_when_another_is_near():
    five = PartitionRecord(
        epoch=1, state="leading", leader="a:d", replicas=("a:d", "b:d", "c:d", "e:d", "f:d")
    )
    places = Places(
        record=five.with_learner("g:d"),
        factor=5,
        nodes=nodes(a="", b="", e="", f="", g=""),
        load={},
        caught_up=ids("a", "b", "e", "f"),
        lost=ids("c"),
    )

    assert places.next_step() is None
    near = replace(places, caught_up=ids("a", "b", "e", "f", "g"))
    assert [each.do for each in steps(near)] == ["drop", "vote"]


def test_a_lost_one_that_is_back_in_time_stays_and_the_one_too_many_goes():
    places = Places(
        record=WHOLE.with_learner("d:d"),
        factor=3,
        nodes=nodes(a="", b="", c="", d=""),
        load={"a": 1, "b": 2, "c": 1, "d": 1},
        caught_up=ids("a", "b", "c", "d"),
    )

    assert [(each.do, node_of(each.replica)) for each in steps(places)] == [
        ("vote", "d"),
        ("drop", "b"),
    ]


def test_of_two_voters_too_many_one_goes_after_the_other_those_that_are_away_first():
    five = PartitionRecord(
        epoch=1, state="leading", leader="a:d", replicas=("a:d", "b:d", "c:d", "d:d", "e:d")
    )
    places = Places(
        record=five,
        factor=3,
        nodes=nodes(a="", b="", c="", d=""),
        load={"a": 1, "b": 2, "c": 1, "d": 1},
        caught_up=ids("a", "b", "c", "d"),
    )

    assert [(each.do, node_of(each.replica)) for each in steps(places)] == [
        ("drop", "e"),
        ("drop", "b"),
    ]
    assert replace(places, nodes=nodes(a="", b="")).next_step() is None


def test_a_copy_that_everybody_has_votes_in_the_place_of_a_lost_one():
    over = nodes(a="", b="", d="", e="")
    places = Places(
        record=WHOLE.with_learner("d:d").with_learner("e:d"),
        factor=3,
        nodes=over,
        load={},
        caught_up=ids("a", "b", "d", "e"),
        lost=ids("c"),
        is_everywhere=True,
    )

    assert [each.do for each in steps(places)] == ["vote", "drop"]


def test_a_new_node_gets_its_share_of_replicas_and_leaders_and_then_nothing_moves():
    over = nodes(a="", b="", c="", d="")
    choosing = spread(THREE)
    placed = [
        PartitionRecord(epoch=1, state="leading", leader=chosen[0], replicas=chosen)
        for chosen in (choosing.chosen(3) for _ in range(60))
    ]
    moved, load = 0, Counter[str]()
    for _ in range(100):
        load = Counter(node_of(each) for record in placed for each in record.replicas)
        for number, record in enumerate(placed):
            places = Places(
                record=record,
                factor=3,
                nodes=over,
                load=load,
                caught_up=ids(*over),
                may_move=True,
            )
            done = steps(places)
            for step in done:
                places = after(places, step)
            if done:
                placed[number], load = places.record, Counter(dict(places.load))
                moved += 1

    assert max(load.values()) - min(load[name] for name in over) <= len(over)
    assert moved <= 45
    assert sum(node_of(record.leader) == "d" for record in placed) >= 8


# What people want


def settled(places: Places) -> tuple[Places, list[Step]]:
    """Do all steps; all that learn catch up, and what is moved is forgotten once it is."""
    done: list[Step] = []
    while True:
        if places.move is not None and places.is_move_over:
            places = replace(places, move=None)
        step = places.next_step()
        if step is None:
            return places, done
        check_step(places, step)
        done.append(step)
        assert len(done) < 60, done
        places = after(places, step)


def check_step(places: Places, step: Step) -> None:
    """Check that a step is one that the leader may make, and that nothing gets less safe by it."""
    record = places.record
    voters, alive = set(record.replicas), {f"{name}:d" for name in places.nodes}
    match step.do:
        case "drop" | "demote" if step.replica in voters:
            others = voters - {step.replica}
            assert len(others) >= min(len(voters), places.factor) - (len(voters) == 5)
            if step.replica in alive:
                assert len(others & alive) >= min(len(voters & alive), places.factor) - (
                    len(voters) == 5
                )
        case "vote":
            assert step.replica in places.caught_up
            assert node_of(step.replica) not in places.drains
        case "hand_over" | "prefer":
            assert step.replica in voters & alive
            assert node_of(step.replica) not in places.drains


@st.composite
def wanted_places(draw: st.DrawFn) -> Places:
    """Draw a partition that is well, on some of up to seven nodes, and what people want of it. It
    may have more voters than it should: its factor was another, or much came at once."""
    count = draw(st.integers(1, 7))
    zones = draw(st.lists(st.sampled_from("xyz"), min_size=count, max_size=count))
    names = [f"n{number}" for number in range(count)]
    factor = draw(st.integers(1, min(5, count)))
    having = draw(st.permutations(names))[: draw(st.integers(factor, min(5, count)))]
    replicas = tuple(f"{name}:d" for name in having)
    is_everywhere = draw(st.booleans()) and count <= 5
    record = PartitionRecord(
        epoch=1, state="leading", leader=draw(st.sampled_from(replicas)), replicas=replicas
    )
    move = None
    if draw(st.booleans()):
        is_leader_only = draw(st.booleans())
        others = [name for name in names if name not in having]
        targets = having if is_leader_only else others
        sources = ["", *(name for name in having)]
        if targets:
            move = MoveRecord(
                target=draw(st.sampled_from(targets)),
                source="" if is_leader_only else draw(st.sampled_from(sources)),
                is_leader_only=is_leader_only,
            )
    return Places(
        record=record,
        factor=factor,
        nodes=nodes(**dict(zip(names, zones, strict=True))),
        load={name: draw(st.integers(0, 3)) for name in names},
        caught_up=ids(*names),
        is_everywhere=is_everywhere,
        may_move=draw(st.booleans()),
        drains=dict.fromkeys(draw(st.sets(st.sampled_from(names), max_size=count - 1)), ""),
        move=move,
    )


def test_who_is_to_lead_is_not_the_one_of_too_many_that_goes():
    led = PartitionRecord(epoch=1, state="leading", leader="a:d", replicas=("a:d", "b:d"))
    for target in ("a", "b"):
        places = Places(
            record=led,
            factor=1,
            nodes=THREE,
            load={target: 5},
            caught_up=ids("a", "b"),
            move=MoveRecord(target=target, source="", is_leader_only=True),
        )

        rest, _ = settled(places)

        assert (rest.record.leader, rest.record.replicas) == (f"{target}:d", (f"{target}:d",))


@given(wanted_places())
def test_whatever_people_want_comes_to_rest_where_they_want_it_as_far_as_there_are_nodes(places):
    rest, done = settled(places)

    staying = places.nodes.keys() - places.drains.keys()
    voters = {node_of(each) for each in rest.record.replicas}
    assert node_of(rest.record.leader) not in places.drains or not voters & staying
    assert len(voters) == places.factor
    assert len(voters & staying) == min(places.factor, len(staying))
    learners = {node_of(each) for each in rest.record.learners}
    assert learners == (places.nodes.keys() - voters if places.is_everywhere else set())
    move = places.move
    if move is not None and move.target in staying and not places.drains:
        if not move.is_leader_only:
            assert Step("vote", replica_of(move.target, places.nodes[move.target])) in done
        # Where nodes are that uneven, a partition that has been moved may be moved again.
        if not places.may_move:
            assert move.target in voters
            if move.is_leader_only:
                assert node_of(rest.record.leader) == move.target
            else:
                assert move.source not in voters


def test_a_node_that_is_drained_leads_no_more_before_its_replica_moves():
    drained = Places(
        record=WHOLE,
        factor=3,
        nodes=nodes(a="", b="", c="", d=""),
        load={},
        leaders={"b": 3, "c": 1},
        caught_up=ids("a", "b", "c", "d"),
        drains={"a": ""},
    )

    assert [(each.do, node_of(each.replica)) for each in settled(drained)[1]] == [
        ("hand_over", "c"),
        ("learn", "d"),
        ("vote", "d"),
        ("drop", "a"),
        ("hand_over", "d"),
    ]
    nowhere = replace(drained, nodes=THREE)
    assert [each.do for each in settled(nowhere)[1]] == ["hand_over"]


def test_one_that_is_drained_and_there_stays_until_as_many_others_are():
    places = Places(
        record=WHOLE.with_voter("d:d"),
        factor=3,
        nodes=nodes(a="", c="", d=""),  # b is away
        load={},
        caught_up=ids("a", "c", "d"),
        drains={"c": ""},
    )

    assert places.next_step() is None
    assert replace(places, nodes=nodes(a="", b="", c="", d="")).next_step() == Step(
        "drop", ReplicaId("c:d")
    )


def test_a_node_that_is_replaced_has_its_replicas_where_people_want_them_if_they_can_be_there():
    places = Places(
        record=WHOLE,
        factor=3,
        nodes=nodes(a="", b="", d="", e=""),
        load={"d": 0, "e": 9},
        caught_up=ids("a", "b", "d", "e"),
        drains={"c": "e"},
    )

    assert places.next_step() == Step("learn", ReplicaId("e:d"))
    assert replace(places, drains={"c": "b"}).next_step() == Step("learn", ReplicaId("d:d"))
    assert {node_of(each) for each in settled(places)[0].record.replicas} == {"a", "b", "e"}


def test_what_all_nodes_have_one_that_is_drained_has_as_long_as_it_is_there():
    places = Places(
        record=WHOLE.with_learner("d:d"),
        factor=3,
        nodes=nodes(a="", b="", c="", d=""),
        load={},
        caught_up=ids("a", "b", "c", "d"),
        is_everywhere=True,
        drains={"c": ""},
    )

    rest, done = settled(places)
    assert [(each.do, node_of(each.replica)) for each in done] == [("vote", "d"), ("demote", "c")]
    gone = replace(rest, nodes=nodes(a="", b="", d=""))
    assert gone.next_step() == Step("drop", ReplicaId("c:d"))


def test_a_leader_that_people_want_is_preferred_and_led_by():
    places = Places(
        record=WHOLE,
        factor=3,
        nodes=THREE,
        load={},
        caught_up=ids("a", "b", "c"),
        move=MoveRecord(target="c", is_leader_only=True),
    )

    rest, done = settled(places)

    assert [(each.do, node_of(each.replica)) for each in done] == [
        ("prefer", "c"),
        ("hand_over", "c"),
    ]
    assert rest.record.replicas == ("c:d", "a:d", "b:d")
    assert replace(places, move=MoveRecord(target="z", is_leader_only=True)).is_move_over


def test_of_as_many_as_there_can_be_the_one_that_is_moved_makes_room():
    five = PartitionRecord(
        epoch=1, state="leading", leader="a:d", replicas=("a:d", "b:d", "c:d", "e:d", "f:d")
    )
    over = nodes(a="", b="", c="", e="", f="", g="")
    places = Places(
        record=five,
        factor=5,
        nodes=over,
        load={},
        caught_up=ids(*over),
        move=MoveRecord(target="g", source="c"),
    )

    assert [(each.do, node_of(each.replica)) for each in settled(places)[1]] == [
        ("learn", "g"),
        ("drop", "c"),
        ("vote", "g"),
    ]


def test_new_partitions_are_not_put_on_a_node_that_is_drained_unless_there_is_no_other():
    choosing = Spread(THREE, load={}, leads={}, drained={"b"})
    assert {node_of(each) for each in choosing.chosen(3)} == {"a", "c"}

    only = Spread(nodes(a=""), load={}, leads={}, drained={"a"})
    assert only.chosen(3) == (ReplicaId("a:d"),)


def test_records_are_on_all_nodes_however_many_there_are():
    many = nodes(**{f"n{number:02}": "" for number in range(20)}, a="")
    places = Places(
        record=LED, factor=1, nodes=many, load={}, caught_up=ids("a"), is_everywhere=True
    )

    rest, _ = settled(places)

    assert rest.record.replicas == ("a:d",)
    assert {*map(node_of, rest.record.learners)} == many.keys() - {"a"}
