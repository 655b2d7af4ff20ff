"""The ring: leader and standby agree on every message's place, and count what is missing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from waterclock.dispatch.core.identity import MarkerName, Position, SequenceMarker
from waterclock.dispatch.core.ring import Drained, Resumed, Ring

NONCE = b"leader67"


def new_ring(nonce: bytes = b"standby8", messages_max: int = 1_000) -> Ring:
    ring = Ring("c", messages_max=messages_max, bytes_max=10_000)
    ring.subscribed(nonce, 1)
    return ring


def marker(number: int, stored: Position | None = None) -> SequenceMarker:
    return SequenceMarker(name(number), 100 * number, stored)


def name(number: int) -> MarkerName:
    return MarkerName(1, number, NONCE)


def bodies(drained: Drained) -> list[bytes]:
    return [body for stored_batch in drained.stored_batches for body in stored_batch.bodies]


def test_nothing_is_drained_before_a_marker_is_heard():
    ring = new_ring()
    ring.heard([b"a", b"b"])
    assert ring.drain() == Drained([], None)

    ring.marker_heard(marker(1))

    drained = ring.drain()
    assert bodies(drained) == [b"a", b"b"]
    assert drained.position == Position(name(1), 0)


def test_drained_messages_stay_until_they_are_stored():
    ring = new_ring()
    ring.marker_heard(marker(1))
    ring.heard([b"a", b"b"])
    first = ring.drain()
    ring.heard([b"c"])

    assert bodies(ring.drain()) == [b"a", b"b", b"c"]
    assert first.position == Position(name(1), 2)
    ring.stored(first.position)
    assert bodies(ring.drain()) == [b"c"]


def test_a_standby_goes_on_exactly_behind_what_is_stored():
    leader, standby = new_ring(b"leader67"), new_ring()
    standby.heard([b"only the standby heard this"])
    for ring in (leader, standby):
        ring.marker_heard(marker(1))
        ring.heard([b"a", b"b", b"c"])
        ring.marker_heard(marker(2))
        ring.heard([b"d"])
    stored = Position(name(1), 2)

    assert standby.resume(stored) == Resumed(0, False, 0, held=2)
    leader.stored(stored)
    assert standby.drain() == leader.drain()
    assert standby.drain().stored_batches[0].first == 2
    assert standby.drain().stored_batches[1].birth_ms == 200


def test_markers_tell_a_standby_what_it_need_not_keep():
    ring = new_ring()
    ring.marker_heard(marker(1))
    ring.heard([b"a", b"b"])
    ring.marker_heard(marker(2, Position(name(1), 1)))

    assert ring.messages == 1
    assert ring.reaches_back


def test_a_standby_that_came_late_knows_that_it_does_not_reach_back():
    ring = new_ring()
    ring.heard([b"a"])
    ring.marker_heard(SequenceMarker(MarkerName(0, 1, b"standby8"), 1))
    assert not ring.reaches_back
    ring.marker_heard(marker(7, Position(name(6), 3)))
    assert not ring.reaches_back

    assert ring.resume(Position(name(6), 3)) == Resumed(0, True, maybe_repeated=1, held=1)

    ring.marker_heard(marker(8, Position(name(7), 0)))
    assert ring.reaches_back
    assert ring.messages == 0


def test_what_is_pushed_out_is_counted_exactly():
    ring = new_ring(messages_max=3)
    ring.marker_heard(marker(1))
    ring.heard([b"a", b"b", b"c"])
    ring.marker_heard(marker(2))
    ring.heard([b"d", b"e"])

    assert ring.resume(Position(name(1), 1)) == Resumed(
        missed=1, has_gap=False, maybe_repeated=0, held=3
    )
    assert ring.resume(Position(name(1), 1)).missed == 0  # told already
    assert bodies(ring.drain()) == [b"c", b"d", b"e"]


def test_what_is_pushed_out_behind_a_marker_that_is_gone_too_is_counted():
    ring = new_ring(messages_max=1)
    ring.marker_heard(marker(1))
    ring.heard([b"a", b"b", b"c"])
    ring.marker_heard(marker(2))
    ring.heard([b"d", b"e", b"f"])

    assert ring.resume(Position(name(1), 2)) == Resumed(3, False, 0, held=1)


def test_a_leader_is_told_what_its_own_ring_lost():
    ring = new_ring(messages_max=2)
    ring.marker_heard(marker(1))
    ring.heard([b"a", b"b", b"c"])

    assert ring.drain().missed == 1
    assert ring.drain().missed == 0


def test_a_new_subscription_keeps_what_was_heard_and_shows_the_gap():
    ring = new_ring()
    ring.marker_heard(marker(1))
    ring.heard([b"a"])
    ring.subscribed(b"standby8", 50)
    ring.heard([b"b"])

    drained = ring.drain()
    assert bodies(drained) == [b"a"]  # nobody else could find the place behind b
    assert drained.position == Position(name(1), 1)
    ring.marker_heard(marker(5))
    assert bodies(ring.drain()) == [b"a", b"b"]
    assert ring.resume(Position(name(1), 0)) == Resumed(0, True, 0, held=2)
    assert ring.resume(Position(name(5), 0)) == Resumed(0, False, 0, held=0)
    assert ring.gaps == 1


def test_stored_batches_are_cut_and_drained_in_parts():
    ring = new_ring()
    ring.marker_heard(marker(1))
    ring.heard([b"x"] * 900)

    whole = ring.drain()
    assert [
        (stored_batch.first, len(stored_batch.bodies)) for stored_batch in whole.stored_batches
    ] == [
        (0, 500),
        (500, 400),
    ]
    part = ring.drain(600)
    assert [len(stored_batch.bodies) for stored_batch in part.stored_batches] == [500, 100]
    assert part.position == Position(name(1), 600)


def test_the_epoch_of_the_last_marker_is_known():
    ring = new_ring()
    assert ring.epoch_heard == 0
    ring.marker_heard(SequenceMarker(MarkerName(7, 1, NONCE), 1))
    assert ring.epoch_heard == 7
    ring.marker_heard(
        SequenceMarker(MarkerName(0, 1, b"another8"), 1)
    )  # of somebody who just subscribed
    assert ring.epoch_heard == 7
    ring.subscribed(b"standby8", 2)
    assert ring.epoch_heard == 0


steps = st.lists(
    st.one_of(
        st.integers(1, 7).map(lambda count: ("heard", count)),
        st.just(("marker", 0)),
        st.integers(0, 40).map(lambda count: ("store", count)),
    ),
    max_size=40,
)


@given(steps, st.integers(0, 10), st.sampled_from([5, 1_000]))
@settings(max_examples=examples(300))
def test_wherever_the_leader_stops_the_standby_has_the_rest(said, late, messages_max):
    """The leader's ring is large; what it stored, what the standby has, and what is counted as
    missing is everything, and nothing twice."""
    leader, standby = new_ring(b"leader67"), None
    number = sent = before = 0
    stored: list[bytes] = []
    position: Position | None = None
    for at, (kind, count) in enumerate(said):
        if at == late:
            standby, before = new_ring(messages_max=messages_max), sent
        rings = [leader, standby] if standby is not None else [leader]
        match kind:
            case "heard":
                new = [b"%d" % each for each in range(sent, sent + count)]
                sent += count
                for ring in rings:
                    ring.heard(new)
            case "marker":
                number += 1
                for ring in rings:
                    ring.marker_heard(marker(number, position))
            case "store":
                drained = leader.drain(count)
                if drained.position is not None:
                    stored += bodies(drained)
                    position = drained.position
                    leader.stored(position)
        for ring in rings:
            if ring is not None:
                ring.check_invariants()
    if standby is None:
        return

    resumed = standby.resume(position)
    standby.marker_heard(marker(number + 1))
    left = bodies(standby.drain(1_000))

    everything = [b"%d" % each for each in range(sent)]
    if not resumed.has_gap:
        assert len(stored) + len(left) + resumed.missed >= sent - before
        if position is not None:
            assert len(stored) + len(left) + resumed.missed == sent
            assert stored + left == [*everything[: len(stored)], *everything[sent - len(left) :]]
    assert len(set(stored) & set(left)) <= resumed.maybe_repeated
