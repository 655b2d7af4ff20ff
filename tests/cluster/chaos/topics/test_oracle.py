"""The verdict on rounds of topics: each thing that only they have is found, and named."""

from msgspec.structs import replace

from tests.cluster.chaos.topics.oracle import verdict_on
from tests.cluster.chaos.topics.plan import Fault, Plan, Role, Step
from tests.cluster.chaos.topics.record import (
    STREAM,
    Delivered,
    Performed,
    RoundRecord,
    last_due_ms,
)
from tests.cluster.history.events import Changed, Ended, Healed, Polled, Published, Row
from waterclock.model.message import Acks

KILL = Step(100, Fault.KILL, Role.LEADER, 50)
PLAN = Plan(1, 1, "kill-leader", (KILL,), groups=1)
SENT = Published("m1", "t/0", 200, 300, "acked", 0)


def record(*delivered: Delivered) -> RoundRecord:
    """Return a round in which one message was published, and read."""
    read = Polled("reader", "n1", "t/0", 310, 0, 1, (Row(0, "data", "m1"),))
    found = RoundRecord(PLAN, events=[SENT, read, Healed(400), Ended(90_000)])
    found.delivered += delivered
    return found


def found_in(round_record: RoundRecord) -> set[str]:
    return set(verdict_on(round_record).findings)


def test_a_round_in_which_a_group_is_given_everything_is_well():
    assert found_in(record(Delivered("g0", "t/0", 0, "m1", 320))) == set()


def test_a_message_that_a_group_is_not_given_is_found():
    assert found_in(record()) == {"undelivered"}


def test_a_message_that_a_group_is_given_from_where_it_is_not_is_found():
    well = Delivered("g0", "t/0", 0, "m1", 320)

    assert found_in(record(well, well._replace(offset=7))) == {"delivered from elsewhere"}


def test_what_does_not_become_well_again_is_found():
    late = record(Delivered("g0", "t/0", 0, "m1", 320))
    late.late += ["", "n2 is not ready"]

    assert found_in(late) == {"not healed"}


def test_a_change_of_what_a_node_had_acknowledged_and_does_not_know_is_found():
    well = record(Delivered("g0", "t/0", 0, "m1", 320))
    well.forgotten.append("cancel of m1")

    assert found_in(well) == {"forgotten"}


def acked_by(acks: Acks, until_ms: int, *, role: Role = Role.FOLLOWER) -> RoundRecord:
    """Return a round in which a node is killed at 100 and away until 600, at least."""
    found = record(Delivered("g0", "t/0", 0, "m1", 320))
    found.events[0] = replace(SENT, at_ms=250, until_ms=until_ms, acks=acks)
    step = Step(100, Fault.KILL, role, 500)
    found.performed.append(Performed(step, "n2", 100, 900))
    return found


def test_what_is_acknowledged_for_all_while_one_is_away_is_found():
    assert found_in(acked_by("all", 590)) == {"acked without all"}
    assert found_in(acked_by("all", 590, role=Role.ETCD)) == set()
    assert found_in(acked_by("all", 610)) == set()
    assert found_in(acked_by("quorum", 590)) == set()


def test_what_a_leader_alone_acknowledged_may_be_lost_and_ends_no_time_without_acknowledgement():
    alone = Published("m2", "t/0", 150, 180, "acked", 0, acks="leader")
    killed = record(Delivered("g0", "t/0", 0, "m1", 320))
    killed.events.append(alone)
    killed.performed.append(Performed(KILL, "n1", 100, 150, led=("t/0",)))

    assert found_in(killed) == set()
    assert killed.outages_ms() == [200]
    killed.events[-1] = replace(alone, acks="quorum")
    assert found_in(killed) == {"lost write", "false ack"}


def test_the_time_without_acknowledgement_ends_with_what_was_published_since():
    killed = record()
    before = Published("m0", "t/0", 90, 120, "acked", 1)
    killed.events.append(before)
    killed.performed.append(Performed(KILL, "n1", 100, 150, led=("t/0",)))

    assert killed.outages_ms() == [200]


def test_a_round_waits_for_what_was_put_off_too():
    later = Published("m1", "t/0", 200, 300, "acked", 0, due_ms=11_880)
    put_off = Changed("m1", 11_764, 11_771, "acked", due_ms=14_903)

    assert last_due_ms([later, put_off, Ended(90_000)]) == 14_903
    assert last_due_ms([SENT]) == 0


AHEAD = Step(1_000, Fault.CLOCK, Role.LEADER, 1_000, clock_ms=3_600_000)


def scheduled(read_ms: int, written_ms: int, *, step: Step = AHEAD) -> RoundRecord:
    """Return a round with a set clock in which a message that is due after a minute was read."""
    sent = Published("m1", "t/0", 200, 300, "acked", 0, due_ms=60_000)
    rows = (Row(0, "scheduled", "m1"), Row(1, "fired", "m1"))
    read = Polled("reader", "n1", "t/0", read_ms, 0, 2, rows)
    found = RoundRecord(Plan(1, 1, "clock", (step,), groups=0))
    found.events += [sent, read, Healed(2_100), Ended(90_000)]
    found.performed.append(Performed(step, "n1", 1_000, 2_000))
    found.written_ms["t/0", 1] = written_ms
    return found


def test_what_fired_by_a_clock_that_was_ahead_is_judged_by_that_clock():
    hour_ms = AHEAD.clock_ms

    assert found_in(scheduled(1_500, 1_400 + hour_ms)) == set()
    assert found_in(scheduled(1_500, 59_900)) == {"early fire"}


def test_what_was_read_before_a_clock_was_set_is_judged_by_the_round():
    assert found_in(scheduled(900, 3_600_000)) == {"early fire"}


def test_what_fired_after_a_clock_was_right_again_is_judged_by_the_round():
    late = scheduled(10_000, 3_610_000)
    assert found_in(late) == set()

    after = Published("m2", "t/0", 5_000, 5_100, "acked", 1)
    late.events[1] = Polled("reader", "n1", "t/0", 10_000, 0, 3, (
        Row(0, "scheduled", "m1"), Row(1, "data", "m2"), Row(2, "fired", "m1")))  # fmt: skip
    assert found_in(RoundRecord(late.plan, [*late.events, after], performed=late.performed)) == {
        "early fire"
    }


def test_a_clock_that_is_behind_excuses_nothing():
    behind = Step(1_000, Fault.CLOCK, Role.LEADER, 1_000, clock_ms=-3_600_000)

    assert found_in(scheduled(1_500, 61_000, step=behind)) == {"early fire"}


def test_what_is_stored_in_a_stream_is_owed_to_readers_and_to_no_group():
    well = record(Delivered("g0", "t/0", 0, "m1", 320))
    stored = Published("s1", f"{STREAM}s", 200, 210, "acked", 1)
    well.events.append(stored)
    assert found_in(well) == {"lost write"}

    well.events.append(Polled("r", "any", stored.partition, 330, 1, 2, (Row(1, "data", "s1"),)))
    assert found_in(well) == set()
