"""What streams keep in memory is counted, all of it, and whoever waits gets each message once."""

import pytest

from tests.streams.test_streams import NOW, bodies, receive, send, streams
from waterclock.model.errors import LimitExceeded
from waterclock.streams.effects import Accept, Deliver, Effect
from waterclock.streams.ring import Item
from waterclock.streams.streams import Streams
from waterclock.streams.waiters import Receiver, Sender

LARGE = 1 << 18


def blocking(name: str = "s", body: bytes = b"1") -> Sender:
    return Sender(name, Item(body), deadline_ms=NOW + 100, is_blocking=True)


def held(table: Streams) -> int:
    """Count what hangs on all streams the table knows of, forgotten ones too."""
    rings = [stream.ring for stream in table._round if stream.ring is not None]
    return sum(len(item.body) for ring in rings for item in ring.read(ring.first, len(ring)))


def test_messages_of_senders_who_wait_count():
    table = streams(bytes_max=1 << 20)
    for _ in range(3):
        assert send(table, bytes(LARGE), size=0) == []
    assert table.size_bytes > 3 * LARGE
    with pytest.raises(LimitExceeded, match="bytes of all streams"):
        send(table, bytes(LARGE), size=0)
    table.check_invariants()

    assert len(bodies(receive(table))) == 1
    assert 2 * LARGE < table.size_bytes < 3 * LARGE
    table.tick(NOW + 100)
    assert table.size_bytes == 0
    table.check_invariants()


def test_a_sender_who_waited_for_room_counts_once():
    table = streams()
    send(table, bytes(LARGE), size=1)
    assert table.send(blocking(body=bytes(LARGE)), size=1, now_ms=NOW) == []
    assert table.size_bytes > 2 * LARGE
    assert [type(effect) for effect in receive(table)] == [Deliver, Accept]
    assert LARGE < table.size_bytes < 2 * LARGE
    table.check_invariants()
    waits = blocking(body=bytes(LARGE))
    table.send(waits, size=1, now_ms=NOW)
    table.leave(waits)
    table.check_invariants()
    table.forget("s")
    assert table.size_bytes == 0


def test_how_many_may_wait_does_not_depend_on_the_size_a_sender_says():
    table = streams(waiters_max=2)
    send(table, size=0)
    send(table, size=100)
    with pytest.raises(LimitExceeded, match="waiting"):
        send(table, size=100)
    assert table.waiting == 2


def test_a_stream_that_is_deleted_is_gone_at_once():
    table = streams()
    for _ in range(50):
        send(table, bytes(LARGE))
        receive(table, consumer="x")
        table.forget("s")

    assert table.size_bytes == 0
    assert held(table) == 0
    table.check_invariants()


def test_streams_made_and_deleted_again_and_again_leave_little_behind():
    table = streams()
    for number in range(10_000):
        send(table, name=f"s{number}")
        table.forget(f"s{number}")

    assert len(table._round) <= 2_000
    send(table, name="kept")
    for _ in range(3):
        table.tick(NOW)
    assert list(table.names()) == ["kept"]


def test_names_of_consumers_count():
    table = streams(bytes_max=1 << 20, consumers_max=10_000, consumer_idle_ms=1_000)

    def many() -> None:
        for number in range(10_000):
            receive(table, consumer="x" * 250 + str(number), now_ms=NOW)
            table.tick(NOW + 100)

    with pytest.raises(LimitExceeded, match="bytes of all streams"):
        many()
    assert table.size_bytes > 900_000
    table.check_invariants()
    send(table, b"", now_ms=NOW)
    receive(table, consumer="x" * 250 + "0", now_ms=NOW + 900)
    for _ in range(3):
        table.tick(NOW + 1_000)
    assert table.size_bytes < 5_000
    table.check_invariants()
    table.forget("s")
    assert table.size_bytes == 0


# Two who wait under one name


def waiting(table: Streams, **facts: object) -> Receiver:
    receiver = Receiver("s", deadline_ms=NOW + 100, **facts)  # type: ignore[arg-type]
    assert table.receive(receiver, now_ms=NOW) == []
    return receiver


def given(effects: list[Effect]) -> list[tuple[Receiver, list[bytes], int]]:
    return [
        (each.receiver, [item.body for item in each.items], each.missed)
        for each in effects
        if isinstance(each, Deliver)
    ]


def test_of_those_who_wait_under_one_name_the_first_gets_a_message():
    table = streams()
    first, second, other = (waiting(table, consumer=name) for name in ("x", "x", "y"))

    one, two = send(table, b"1"), send(table, b"2")

    assert given(one) == [(first, [b"1"], 0), (other, [b"1"], 0)]
    assert given(two) == [(second, [b"2"], 0)]
    assert bodies(receive(table, consumer="x")) == []
    assert bodies(receive(table, consumer="y")) == [b"2"]
    table.check_invariants()


def test_what_one_of_a_name_could_not_be_given_goes_to_the_next_of_it():
    table = streams()
    _, second = (waiting(table, consumer="x") for _ in range(2))
    [_, lost] = send(table, b"1")
    assert isinstance(lost, Deliver)

    again = table.give_back(lost, now_ms=NOW)

    assert given(again) == [(second, [b"1"], 0)]
    assert bodies(receive(table, consumer="x")) == []
    table.check_invariants()


# Where nothing is kept


def test_a_message_that_is_handed_over_goes_to_all_who_would_get_it_elsewhere():
    table = streams()
    send(table, size=0)
    assert len(bodies(receive(table))) == 1
    one, other = waiting(table, after=1), waiting(table, after=1)
    named, _ = waiting(table, consumer="x"), waiting(table, consumer="x")
    shared, _ = waiting(table), waiting(table)

    effects = send(table, b"2")

    assert given(effects) == [(each, [b"2"], 0) for each in (one, other, named, shared)]
    assert [each.sender is not None for each in effects] == [True, False, False, False]
    assert table.waiting == 2
    lost = effects[0]
    assert isinstance(lost, Deliver)
    assert lost.sender is not None
    assert table.give_back(lost, now_ms=NOW) == [Accept(lost.sender, 2, 3)]
    assert table.size_bytes == 208 - 4
    table.check_invariants()
