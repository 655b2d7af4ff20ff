"""The table of streams: limits, forgetting, draining, and what is stored."""

import pytest

from waterclock.model.errors import LimitExceeded
from waterclock.model.sections import StreamsConfig
from waterclock.streams.effects import Accept, Deliver, Dismiss, Effect, ReadStore, TimeOut
from waterclock.streams.ring import Item
from waterclock.streams.streams import Streams
from waterclock.streams.waiters import Receiver, Sender

NOW = 1_000_000


def streams(**config) -> Streams:
    return Streams(StreamsConfig(**config))


def send(table: Streams, body: bytes = b"1", name: str = "s", *, size: int = 3, now_ms: int = NOW):
    sender = Sender(name, Item(body), deadline_ms=now_ms + 100)
    return table.send(sender, size=size, now_ms=now_ms)


def receive(table: Streams, name: str = "s", *, now_ms: int = NOW, **facts) -> list[Effect]:
    receiver = Receiver(name, deadline_ms=now_ms + 100, **facts)
    return table.receive(receiver, now_ms=now_ms)


def bodies(effects: list[Effect]) -> list[bytes]:
    return [item.body for e in effects if isinstance(e, Deliver) for item in e.items]


def test_those_who_compete_share_and_named_ones_see_everything():
    table = streams()
    for body in (b"1", b"2", b"3", b"4"):
        send(table, body)

    assert bodies(receive(table)) == [b"2"]
    assert bodies(receive(table, limit=5)) == [b"3", b"4"]
    [given] = receive(table, consumer="x", limit=5)
    assert isinstance(given, Deliver)
    assert [item.body for item in given.items] == [b"2", b"3", b"4"]
    assert table.counters.overwritten == 1


def test_a_slow_one_is_told_what_it_missed():
    table = streams()
    send(table, b"1")
    receive(table, consumer="x")
    for body in (b"2", b"3", b"4", b"5"):
        send(table, body)

    [given] = receive(table, consumer="x", limit=2)

    assert isinstance(given, Deliver)
    assert (given.positions, given.missed) == ([3, 4], 1)


def test_the_first_to_wait_is_the_first_served():
    table = streams()
    first = Receiver("s", deadline_ms=NOW + 100)
    second = Receiver("s", deadline_ms=NOW + 100)
    assert table.receive(first, now_ms=NOW) == table.receive(second, now_ms=NOW) == []

    [accept, given] = send(table)

    assert isinstance(accept, Accept)
    assert accept.receivers == 1
    assert isinstance(given, Deliver)
    assert given.receiver is first
    assert table.waiting == 1


def test_who_has_left_is_never_matched():
    table = streams()
    gone = Receiver("s", deadline_ms=NOW + 100)
    table.receive(gone, now_ms=NOW)
    table.leave(gone)
    table.leave(gone)

    assert bodies(send(table)) == []
    assert table.waiting == 0
    assert bodies(receive(table)) == [b"1"]


def test_what_could_not_be_handed_over_goes_first():
    table = streams()
    for body in (b"1", b"2"):
        send(table, body)
    [given] = receive(table)
    assert isinstance(given, Deliver)

    table.give_back(given, now_ms=NOW)

    assert bodies(receive(table)) == [b"1"]
    assert bodies(receive(table)) == [b"2"]


def test_sender_and_receiver_meet_where_nothing_is_kept():
    table = streams()
    assert send(table, size=0) == []
    [given] = receive(table)
    assert isinstance(given, Deliver)
    assert given.sender is not None

    # The receiver turned out to be gone: the sender stands first again, and the next one gets it.
    assert table.give_back(given, now_ms=NOW) == []
    assert table.waiting == 1
    assert bodies(receive(table)) == [b"1"]
    assert table.waiting == 0


def test_a_patient_sender_waits_until_everyone_has_read():
    table = streams()
    receive(table, consumer="x")
    waits: list[Effect] = []
    for body in (b"1", b"2", b"3", b"4"):
        sender = Sender("s", Item(body), deadline_ms=NOW + 100, is_blocking=True)
        waits = table.send(sender, size=3, now_ms=NOW)
    assert bodies(receive(table, consumer="x")) == [b"2"]
    last = Sender("s", Item(b"5"), deadline_ms=NOW + 100, is_blocking=True)

    assert [type(effect) for effect in waits] == [Accept]
    assert [type(e) for e in table.send(last, size=3, now_ms=NOW)] == [Accept]
    assert table.counters.overwritten == 2  # those everyone had read


def test_time_ends_for_senders_and_receivers():
    table = streams()
    receive(table, "a")
    send(table, name="b", size=0)

    assert table.tick(NOW + 99) == []
    assert table.next_deadline() == NOW + 100
    assert [type(effect) for effect in table.tick(NOW + 100)] == [TimeOut, TimeOut]
    assert table.waiting == 0
    assert table.next_deadline() is None
    assert (table.counters.send_timeouts, table.counters.receive_timeouts) == (1, 1)


def test_idle_streams_are_forgotten_with_their_messages():
    table = streams(idle_ms=1_000)
    send(table, name="idle")
    send(table, name="busy")
    receive(table, "waited for")

    for now_ms in (NOW + 900, NOW + 1_000, NOW + 1_001, NOW + 1_002, NOW + 1_003):
        send(table, name="busy", now_ms=NOW + 900)
        table.tick(now_ms)

    assert sorted(table.names()) == ["busy"]
    assert table.counters.forgotten == 2
    table.check_invariants()


def test_a_consumer_that_stays_away_holds_nobody_up():
    table = streams(consumer_idle_ms=1_000)
    receive(table, consumer="away")
    for body in (b"1", b"2", b"3", b"4"):
        send(table, body)
    blocking = Sender("s", Item(b"5"), deadline_ms=NOW + 100_000, is_blocking=True)
    assert table.send(blocking, size=3, now_ms=NOW) == []
    receive(table, limit=5)
    assert blocking.queue is not None

    effects = [effect for _ in range(3) for effect in table.tick(NOW + 1_000)]

    assert [type(e) for e in effects if not isinstance(e, TimeOut)] == [Accept]


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"streams_max": 1}, "streams"),
        ({"bytes_max": 1 << 20}, "bytes of all streams"),
        ({"waiters_max": 1}, "waiting"),
        ({"consumers_max": 1}, "consumers of a stream"),
    ],
)
def test_what_is_too_much_is_refused_by_name(config, what):
    table = streams(**config)

    def much() -> None:
        send(table, bytes(1 << 19))
        send(table, bytes(1 << 19))
        receive(table, "waits")
        receive(table, "waits", consumer="x")
        receive(table, "s", consumer="x")
        receive(table, "s", consumer="y")

    with pytest.raises(LimitExceeded, match=what):
        much()
    table.check_invariants()


def test_whoever_waits_is_sent_away_when_the_stream_goes_or_the_node_stops():
    table = streams()
    receive(table, "a")
    receive(table, "b", consumer="x")
    send(table, name="c", size=0)

    assert [type(effect) for effect in table.forget("a")] == [Dismiss]
    assert table.forget("unheard of") == []
    assert [type(effect) for effect in table.drain()] == [Dismiss, Dismiss]
    assert [type(effect) for effect in receive(table, "a")] == [Dismiss]
    assert [type(effect) for effect in send(table)] == [Dismiss]
    table.check_invariants()


def test_who_waits_for_stored_messages_gets_the_next_or_reads_on():
    table = streams()
    next_one = Receiver("s", deadline_ms=NOW + 100, after=4)
    behind = Receiver("s", deadline_ms=NOW + 100, after=3)
    further = Receiver("s", deadline_ms=NOW + 100, after=5)
    with table.reading("s"):
        for each in (next_one, behind, further):
            assert table.tail(each, now_ms=NOW) == []
        assert table.tailed() == ["s"]

        effects = table.stored("s", 5, Item(b"5", stored=5))

        assert bodies(effects) == [b"5"]
        assert effects[1:] == [ReadStore(behind)]
        assert table.tail(behind, now_ms=NOW) == [ReadStore(behind)]
    assert table.stored("unheard of", 1, Item(b"1")) == []
    assert table.stored("s", 6, None) == [ReadStore(further)]
    assert table.tailed() == []
    table.check_invariants()


def test_what_is_stored_while_somebody_reads_is_remembered_without_a_stream_in_memory():
    table = streams()
    with table.reading("s"), table.reading("s"):
        table.stored("s", 7, None)
        assert len(table) == 0

        late = Receiver("s", deadline_ms=NOW + 100, after=6)
        assert table.tail(late, now_ms=NOW) == [ReadStore(late)]
    with table.reading("s"):
        assert table.tail(late, now_ms=NOW) == []
    table.check_invariants()


def test_a_consumer_confirms_stored_messages_and_senders_who_wait_for_it_get_room():
    table = streams()
    for number in range(1, 4):
        table.send(Sender("s", Item(b"%d" % number, stored=number)), size=3, now_ms=NOW)
    assert len(bodies(receive(table, consumer="x", limit=3, is_confirming=True))) == 3
    blocking = Sender("s", Item(b"4"), deadline_ms=NOW + 100, is_blocking=True)
    assert table.send(blocking, size=3, now_ms=NOW) == []

    assert table.confirm("s", "x", 2, now_ms=NOW) == [Accept(blocking, 4, 0)]

    assert bodies(receive(table, consumer="x", limit=9, is_confirming=True)) == [b"3", b"4"]
    table.check_invariants()


def test_who_confirms_is_kept_from_nothing_by_a_namesake_who_may_be_gone():
    table = streams()
    for _ in range(2):  # a poll whose connection is dead without our knowing, and the next one
        assert receive(table, consumer="x", is_confirming=True) == []

    assert bodies(send(table, b"1")) == [b"1", b"1"]

    [given] = receive(table, consumer="x")
    assert isinstance(given, Deliver)
    assert receive(table, consumer="x", is_confirming=True) == []
    assert bodies(table.give_back(given, now_ms=NOW)) == [b"1"]
    assert bodies(receive(table, consumer="x", is_confirming=True)) == [b"1"]
    table.check_invariants()


@pytest.mark.parametrize("facts", [{}, {"consumer": "x"}])
def test_a_receiver_of_many_gets_no_more_bytes_than_fit(facts, monkeypatch):
    monkeypatch.setattr("waterclock.streams.stream.GIVEN_BYTES_MAX", 10)
    table = streams()
    for _ in range(3):
        send(table, b"12345678")

    assert len(bodies(receive(table, limit=9, **facts))) == 2
    assert len(bodies(receive(table, limit=9, **facts))) == 1
