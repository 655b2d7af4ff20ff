"""A stream goes to another node whole, and readers there go on where they were."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import CapacityReached
from waterclock.model.sections import StreamsConfig
from waterclock.streams.consumer import Consumer
from waterclock.streams.effects import Accept, Deliver, Effect, Move
from waterclock.streams.exported import BadExport, Exported, ExportedConsumer
from waterclock.streams.ring import Item, Ring
from waterclock.streams.stream import Stream
from waterclock.streams.streams import Streams
from waterclock.streams.waiters import Receiver, Sender

NOW_MS = 1_000
"""On the first node; the clock of the other one shows something else."""
THERE_MS = 50_000

words = st.text(max_size=6)
counts = st.integers(0, 2**64 - 1)
items = st.builds(Item, st.binary(max_size=8), words, counts, counts, counts)
consumers = st.builds(ExportedConsumer, words, counts, counts, counts)


@st.composite
def streams(draw):
    kept = tuple(draw(st.lists(items, max_size=4)))
    size = draw(st.one_of(st.none(), st.integers(len(kept), 9))) if not kept else len(kept) + 1
    end = 0 if size is None else draw(st.integers(len(kept), 2**63))
    taken = draw(st.integers(0, end))
    given_back = draw(st.sets(st.integers(1, taken), max_size=3)) if taken else ()
    named = draw(st.lists(consumers, max_size=3, unique_by=lambda each: each.name))
    return Exported(
        draw(words),
        draw(counts),
        size,
        end,
        kept,
        taken,
        draw(counts),
        draw(st.booleans()),
        tuple(sorted(given_back)),
        tuple(named),
        draw(counts),
    )


@given(streams())
def test_a_stream_comes_out_as_it_went_in(stream):
    assert Exported.decode(stream.encode()) == stream


@given(st.binary(max_size=150))
def test_any_bytes_are_a_stream_or_refused(data):
    with suppress(BadExport):
        Exported.decode(data)


@given(streams(), st.data())
def test_a_stream_with_a_changed_byte_is_a_stream_that_can_live_or_refused(stream, data):
    encoded = bytearray(stream.encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadExport):
        table = Streams(StreamsConfig())
        with suppress(CapacityReached):
            table.take_in(Exported.decode(bytes(encoded)), now_ms=THERE_MS)
        table.check_invariants()


def test_bytes_on_the_wire_do_not_change():
    stream = Exported(
        "a", 7, 3, 5, (Item(b"{}", "id", 1, 2, 3),), 5, 1, True, (5,),
        (ExportedConsumer("c", 4, 2, 9),), 8,
    )  # fmt: skip
    assert stream.encode() == bytes.fromhex(
        "0000000000000007 03 00000003 0000000000000005 0000000000000005 0000000000000001"
        "0000000000000008 00000001 00000001 00000001 00000001 61"
        "0000000000000001 0000000000000002 0000000000000003 00000002 00000002 6964 7b7d"
        "0000000000000005 0000000000000004 0000000000000002 0000000000000009 00000001 63"
    )


def table_of(**config) -> Streams:
    return Streams(StreamsConfig(**config), first_incarnation=1)


def send(table: Streams, message: bytes, *, size: int = 3, now_ms: int = NOW_MS, ttl_ms: int = 0):
    item = Item(message, expires_ms=now_ms + ttl_ms if ttl_ms else 0)
    sender = Sender("a", item, deadline_ms=now_ms + 100)
    return table.send(sender, size=size, now_ms=now_ms)


def receive(table: Streams, *, now_ms: int = NOW_MS, **facts) -> list[Effect]:
    receiver = Receiver("a", deadline_ms=now_ms + 100, **facts)
    return table.receive(receiver, now_ms=now_ms)


def bodies(effects: list[Effect]) -> list[bytes]:
    given = [effect for effect in effects if isinstance(effect, Deliver)]
    return [item.body for each in given for item in each.items]


def found(table: Streams) -> Stream:
    stream = table.find("a")
    assert stream is not None
    return stream


def ring_of(table: Streams) -> Ring:
    ring = found(table).ring
    assert ring is not None
    return ring


def consumer_of(table: Streams) -> Consumer:
    return (found(table).consumers or {})["c"]


def export(table: Streams) -> Exported:
    exported = table.export("a", now_ms=NOW_MS)
    assert exported is not None
    return exported


def moved(table: Streams, other: Streams) -> Exported:
    """Move the stream as nodes do, by its bytes."""
    exported = export(table)
    other.take_in(Exported.decode(exported.encode()), now_ms=THERE_MS)
    table.check_invariants()
    other.check_invariants()
    return exported


def test_receivers_go_on_where_they_were():
    table, other = table_of(), table_of()
    for message in (b"1", b"2", b"3", b"4"):
        send(table, message)
    receive(table, consumer="c")
    taken = receive(table)
    back = next(effect for effect in taken if isinstance(effect, Deliver))
    receive(table)
    table.give_back(back, now_ms=NOW_MS)
    incarnation = found(table).incarnation

    moved(table, other)

    ring = ring_of(other)
    assert table.find("a") is None
    assert (found(other).incarnation, ring.first, ring.end) == (incarnation, 2, 4)
    assert bodies(receive(other, now_ms=THERE_MS, limit=9)) == [b"2", b"4"]
    assert bodies(receive(other, now_ms=THERE_MS, limit=9, consumer="c")) == [b"3", b"4"]
    assert bodies(receive(other, now_ms=THERE_MS, limit=9, after=3)) == [b"4"]


def test_what_expires_does_so_after_the_time_it_had_left():
    table, other = table_of(), table_of()
    send(table, b"1", ttl_ms=100)
    send(table, b"2")

    moved(table, other)

    assert ring_of(other).get(1).expires_ms == THERE_MS + 100
    assert bodies(receive(other, now_ms=THERE_MS + 99, after=0)) == [b"1"]
    assert bodies(receive(other, now_ms=THERE_MS + 100, after=0)) == [b"2"]


def test_what_is_idle_stays_as_idle_as_it_was():
    table, other = table_of(), table_of()
    receive(table, consumer="c", now_ms=NOW_MS - 70)
    send(table, b"1", now_ms=NOW_MS - 50)

    moved(table, other)

    assert found(other).touched_ms == THERE_MS - 50
    assert consumer_of(other).seen_ms == THERE_MS - 70


def test_waiters_are_told_to_ask_elsewhere_and_nothing_was_done_for_them():
    table = table_of()
    sender = Sender("a", Item(b"1"), deadline_ms=NOW_MS + 100)
    table.send(sender, size=0, now_ms=NOW_MS)
    receiver = Receiver("b", deadline_ms=NOW_MS + 100, after=0)
    table.receive(receiver, now_ms=NOW_MS)

    assert table.move_waiters("a") == [Move(sender)]
    assert table.move_waiters("b") == [Move(receiver)]
    assert table.move_waiters("c") == []
    assert (table.waiting, table.size_bytes) == (0, 0)
    table.check_invariants()


def test_of_two_streams_what_comes_is_put_behind_what_is_there():
    table, other = table_of(), Streams(StreamsConfig(), first_incarnation=9)
    for message in (b"1", b"2", b"3"):
        send(table, message)
    receive(table)
    receive(table, consumer="c", limit=2)
    for message in (b"x", b"y"):
        send(other, message, now_ms=THERE_MS, size=5)
    receive(other, now_ms=THERE_MS, consumer="d")

    moved(table, other)

    assert bodies(receive(other, now_ms=THERE_MS, consumer="c", limit=9)) == [b"3"]
    assert bodies(receive(other, now_ms=THERE_MS, consumer="d", limit=9)) == [b"y", b"2", b"3"]
    assert bodies(receive(other, now_ms=THERE_MS, limit=9)) == [b"x", b"y", b"2", b"3"]
    other.check_invariants()


def test_a_consumer_hears_how_much_it_cannot_get_of_a_stream_put_behind_another():
    table, other = table_of(), Streams(StreamsConfig(), first_incarnation=9)
    for message in (b"1", b"2", b"3", b"4", b"5"):
        send(table, message)
    receive(table, limit=2)
    receive(table, consumer="c")
    consumer_of(table).position = 1
    send(other, b"x", now_ms=THERE_MS)

    moved(table, other)

    (given,) = receive(other, now_ms=THERE_MS, consumer="c", limit=9)
    assert isinstance(given, Deliver)
    assert bodies([given]) == [b"5"]
    assert given.missed == 3


def test_who_waits_at_a_stream_that_comes_asks_again():
    table, other = table_of(), Streams(StreamsConfig(), first_incarnation=9)
    send(table, b"1")
    receiver = Receiver("a", deadline_ms=THERE_MS + 100)
    other.receive(receiver, now_ms=THERE_MS)
    known = Receiver("a", deadline_ms=THERE_MS + 100, consumer="d")
    other.receive(known, now_ms=THERE_MS)
    exported = export(table)

    assert other.take_in(exported, now_ms=THERE_MS) == [Move(receiver), Move(known)]
    other.check_invariants()
    assert found(other).incarnation == exported.incarnation
    assert bodies(receive(other, now_ms=THERE_MS)) == [b"1"]
    assert bodies(receive(other, now_ms=THERE_MS, consumer="d")) == [b"1"]


def test_the_same_stream_is_not_taken_in_twice():
    table, other = table_of(), table_of()
    send(table, b"1")
    exported = moved(table, other)
    assert bodies(receive(other, now_ms=THERE_MS)) == [b"1"]

    other.take_in(exported, now_ms=THERE_MS)

    assert bodies(receive(other, now_ms=THERE_MS)) == []


def test_a_stream_for_which_there_is_no_room_is_refused_and_changes_nothing():
    table = table_of()
    send(table, b"1" * 2_000_000)
    exported = export(table)
    small, few = table_of(bytes_max=1 << 20), table_of(streams_max=1)
    few.send(Sender("b", Item(b"")), size=1, now_ms=THERE_MS)

    with pytest.raises(CapacityReached, match="bytes of all streams"):
        small.take_in(exported, now_ms=THERE_MS)
    with pytest.raises(CapacityReached, match="streams"):
        few.take_in(exported, now_ms=THERE_MS)
    assert (len(small), len(few)) == (0, 1)


def test_a_stream_nothing_was_sent_to_keeps_its_consumers():
    table, other = table_of(), table_of()
    receive(table, consumer="c")
    table.move_waiters("a")

    assert not moved(table, other).is_empty

    (accepted,) = send(other, b"1", now_ms=THERE_MS)
    assert isinstance(accepted, Accept)
    assert bodies(receive(other, now_ms=THERE_MS, consumer="c")) == [b"1"]


def test_what_comes_back_for_a_stream_that_has_moved_changes_no_other_stream_of_the_name():
    table, other = table_of(), table_of()
    for message in (b"1", b"2", b"3"):
        send(table, message)
    given = [each for _ in range(3) for each in receive(table) if isinstance(each, Deliver)]
    moved(table, other)

    assert table.give_back(given[2], now_ms=NOW_MS) == []
    assert table.find("a") is None
    send(table, b"x")
    assert table.give_back(given[1], now_ms=NOW_MS) == []
    assert bodies(receive(table, limit=9)) == [b"x"]
    table.check_invariants()
