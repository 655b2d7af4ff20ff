"""Rot that a running store meets: seen at once, named, noted, and everything around it served."""

import pytest

from tests.storage.stores import FIRST, Partition, message, offsets, places, rows_of
from waterclock.log.frame import HEADER_BYTES, FrameType
from waterclock.model.errors import FrameDamaged, PartitionFaulty

HEADER, BODY = 20, HEADER_BYTES + 200
"""A byte of a frame's header, and one of its body."""


def rot(partition: Partition, frame: int, byte: int) -> None:
    position, _ = places(partition.files()[FIRST])[frame]
    partition.folder.flip(FIRST, position + byte, 0)


def faults(partition: Partition) -> list[tuple[int, int]]:
    return [(fault.start, fault.end) for fault in partition.store.faults]


@pytest.mark.parametrize("byte", [HEADER, BODY])
@pytest.mark.parametrize("every_bytes", [1, 1 << 20])
def test_rot_met_by_a_reader_makes_the_log_faulty_and_names_the_file(byte, every_bytes):
    partition = Partition(index_every_bytes=every_bytes)
    partition.fill(range(4))
    rot(partition, 1, byte)

    with pytest.raises(FrameDamaged, match=FIRST):
        partition.store.read(1)

    rows, refused = rows_of(partition.store)
    assert (sorted(rows), refused) == ([0, 2, 3], {1})
    with pytest.raises(PartitionFaulty, match=r"1 damaged stretches, first offsets \[1, 2\)"):
        partition.append(message(4))


@pytest.mark.parametrize("byte", [HEADER, BODY])
@pytest.mark.parametrize("offset", [2, 3])
def test_known_damage_does_not_hide_what_lies_behind_it_in_the_same_block(byte, offset):
    partition = Partition(index_every_bytes=1 << 20)
    partition.fill(range(4))
    rot(partition, 1, byte)
    with pytest.raises(FrameDamaged):
        partition.store.read(1)

    frame = partition.store.read(offset)[0]

    assert frame.header.base_offset == offset


def test_rot_of_the_last_frame_is_noted_with_all_of_its_offsets():
    partition = Partition()
    partition.publish(message(0))
    partition.publish(message(1), message(2), message(3))
    rot(partition, 1, HEADER)

    with pytest.raises(FrameDamaged):
        partition.store.read(2)

    assert faults(partition) == [(1, 4)]
    assert sorted(partition.rows()) == [0]


def test_a_last_frame_turned_to_zeros_is_damage_and_not_free_space():
    partition = Partition()
    partition.fill(range(3))
    position, header = places(partition.files()[FIRST])[2]
    partition.folder.reopen().open(FIRST).write(position, [bytes(header.size)])

    with pytest.raises(FrameDamaged, match=FIRST):
        partition.store.read(2)

    assert faults(partition) == [(2, 3)]


def test_a_second_damage_is_added_to_the_first_once():
    partition = Partition()
    partition.fill(range(5))
    found = places(partition.files()[FIRST])
    for frame in (1, 3):
        partition.folder.flip(FIRST, found[frame][0] + BODY, 0)
        with pytest.raises(FrameDamaged):
            partition.store.read(frame)

    assert faults(partition) == [(1, 2), (3, 4)]


def test_rot_among_ids_that_were_seen_takes_no_offset_and_hides_no_message():
    partition = Partition()
    partition.publish(*[message(n, value=b"v" * 400) for n in range(3)])
    partition.roll()
    partition.fill(range(3, 6))
    partition.rewrite(keep_from=3)
    kinds = [header.type for _, header in places(partition.files()[FIRST])]
    rot(partition, 1, BODY)

    rows, refused = rows_of(partition.store)

    assert kinds == [FrameType.NOOP, FrameType.SEEN]
    assert (sorted(rows), refused, faults(partition)) == ([3, 4, 5], set(), [(3, 3)])
    with pytest.raises(PartitionFaulty):
        partition.append(message(1))


def test_rot_met_while_a_repeat_is_confirmed_is_not_answered_with_a_guess():
    partition = Partition()
    partition.fill(range(2))
    rot(partition, 1, BODY)

    with pytest.raises(FrameDamaged, match=FIRST):
        partition.append(message(1))

    assert partition.store.end == 2


def test_a_scheduled_message_that_has_rotted_is_not_fired():
    partition = Partition()
    partition.publish(message(0, due_ms=partition.clock.now_ms() + 5))
    rot(partition, 0, BODY)

    with pytest.raises(FrameDamaged, match=FIRST):
        partition.store.fire(offsets(0), now_ms=partition.clock.now_ms())

    assert partition.store.end == 1
    assert list(partition.scheduled()) == [0]
