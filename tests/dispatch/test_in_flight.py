"""What a worker holds: which of it is extended, and how much it asks for."""

from waterclock.dispatch.worker.in_flight import InFlight

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
LINK, OTHER = object(), object()


def item(uuid: bytes):
    return (uuid, 0, b"", 1, LINK)


def test_a_message_that_is_in_hand_is_not_taken_twice():
    hand = InFlight(credit_max=100, workers=2, handler_s_max=60)

    assert hand.take([A, B], LINK, now=0.0) == [0, 1]
    assert hand.take([B, C], LINK, now=1.0) == [1]
    hand.done([B])
    assert hand.take([B], LINK, now=2.0) == [0]


def test_what_came_by_another_connection_is_taken_anew():
    hand = InFlight(credit_max=100, workers=2, handler_s_max=60)
    hand.take([A], LINK, now=0.0)

    assert hand.take([A], OTHER, now=1.0) == [0]
    hand.drop(LINK)
    assert len(hand) == 1


def test_old_messages_are_extended_and_young_ones_need_not_be():
    hand = InFlight(credit_max=100, workers=2, handler_s_max=60)
    hand.take([A], LINK, now=0.0)
    hand.take([B], OTHER, now=0.0)
    hand.take([C], LINK, now=9.5)

    assert hand.to_extend(LINK, [], older_s=1.0, now=10.0) == [A]


def test_a_handler_that_runs_too_long_is_not_extended_and_its_neighbours_are():
    hand = InFlight(credit_max=100, workers=2, handler_s_max=60)
    hand.take([A, B, C], LINK, now=0.0)

    at_work = [(item(A), 0.0), (item(B), 50.0)]
    assert hand.to_extend(LINK, at_work, older_s=1.0, now=61.0) == [B, C]


def test_nothing_is_extended_if_the_whole_pool_is_stuck():
    hand = InFlight(credit_max=100, workers=2, handler_s_max=60)
    hand.take([A, B, C], LINK, now=0.0)

    at_work = [(item(A), 0.0), (item(B), 0.5)]
    assert hand.to_extend(LINK, at_work, older_s=1.0, now=61.0) == []


def test_credit_doubles_while_work_is_quick_and_halves_while_it_is_slow():
    hand = InFlight(credit_max=100, workers=2, handler_s_max=60)
    assert hand.credit == 16
    uuids = [n.to_bytes(16, "big") for n in range(64)]

    for expected in (32, 64, 100, 100):
        hand.take(uuids, LINK, now=0.0)
        hand.done(uuids)
        assert hand.adapt(deadline_s=2.0, now=0.1) == expected
    hand.take([A], LINK, now=0.0)
    for expected in (50, 25, 12, 6, 3, 2, 2):
        assert hand.adapt(deadline_s=2.0, now=1.5) == expected


def test_credit_stays_while_little_is_to_do():
    hand = InFlight(credit_max=100, workers=2, handler_s_max=60)
    hand.take([A], LINK, now=0.0)
    hand.done([A])

    assert hand.adapt(deadline_s=2.0, now=0.1) == 16


def test_credit_never_exceeds_what_is_configured():
    assert InFlight(credit_max=3, workers=8, handler_s_max=60).credit == 3
