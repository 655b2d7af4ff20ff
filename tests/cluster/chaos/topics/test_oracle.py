"""The verdict on rounds of topics: each thing that only they have is found, and named."""

from tests.cluster.chaos.topics.oracle import verdict_on
from tests.cluster.chaos.topics.plan import Fault, Plan, Role, Step
from tests.cluster.chaos.topics.record import Delivered, Performed, RoundRecord
from tests.cluster.history.events import Ended, Healed, Polled, Published, Row

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


def test_the_time_without_acknowledgement_ends_with_what_was_published_since():
    killed = record()
    before = Published("m0", "t/0", 90, 120, "acked", 1)
    killed.events.append(before)
    killed.performed.append(Performed(KILL, "n1", 100, 150, led=("t/0",)))

    assert killed.outages_ms() == [200]
