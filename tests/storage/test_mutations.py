"""Random damage to random files: everything is served as it was written, or reported, or refused.

Hundreds of seeded cases on folders with frames of every type. One file a case is flipped, zeroed,
cut, stretched, shuffled or replaced by another; then the log is opened and all of it is read, in
every way there is. What may never happen: a wrong row, a row missing without a word, a change to a
segment other than the cut of a tail that nothing proves to have been safe.
"""

from collections.abc import Callable
from functools import cache
from random import Random
from typing import NamedTuple

import pytest

from tests.storage.stores import (
    Partition,
    Stored,
    disk_of,
    files_of,
    message,
    offsets,
    open_store,
    places,
    rows_of,
)
from waterclock.log.segment import HEADER_BYTES, segment_name
from waterclock.model.errors import Damaged

CASES = 40
"""Per test, of which there are five times two."""

Mutate = Callable[[bytearray, Random], None]


class Sample(NamedTuple):
    """A folder and what it holds."""

    files: dict[str, bytes]
    rows: dict[int, Stored]
    scheduled: dict[int, int]
    last: str
    """The name of the last segment."""
    sealed_end: int
    proven_end: int
    """Everything below is known to be safe from more than one file."""


def written() -> Partition:
    """Messages of every kind in five segments, two of them rewritten."""
    partition = Partition()
    now = partition.clock.now_ms()
    for start in range(0, 20, 5):
        partition.publish(*[message(start + i, value=b"v" * 40 * i, key=b"k") for i in range(3)])
        partition.publish(message(start + 3, due_ms=now + 500), message(start + 4, due_ms=now + 9))
        partition.roll()
    partition.store.cancel(offsets(3), now_ms=now)
    partition.store.fire(offsets(9, 4), now_ms=now)
    partition.rewrite(keep_from=10)
    partition.store.reschedule(offsets(13), offsets(now + 77), now_ms=now)
    for number in range(30, 34):
        partition.publish(message(number))
    return partition


@cache
def sample(is_closed: bool) -> Sample:
    partition = written()
    if is_closed:
        partition.close()
    else:
        partition.append(message(40), message(41))
        partition.append(message(42))
        partition.kill()
    files = partition.files()
    store = open_store(disk_of(files))
    assert not store.faults
    scheduled = dict(zip(*(column.tolist() for column in store.open_scheduled()), strict=True))
    last = store.segments[-1]
    proven = store.end if is_closed else store.end - 3
    return Sample(files, rows_of(store)[0], scheduled, last.file.name, last.base_offset, proven)


# The mutations


def place(data: bytearray, random: Random) -> int:
    """Choose a byte, often one near the start of a frame."""
    if len(data) > HEADER_BYTES and random.random() < 0.5:
        return min(random.randrange(len(data)) // 8 * 8 + random.randrange(80), len(data) - 1)
    return random.randrange(len(data))


def flip(data: bytearray, random: Random) -> None:
    for _ in range(random.choice([1, 1, 3])):
        data[place(data, random)] ^= 1 << random.randrange(8)


def zero(data: bytearray, random: Random) -> None:
    at, count = place(data, random), random.choice([1, 8, 72, 512])
    data[at : at + count] = bytes(len(data[at : at + count]))


def cut(data: bytearray, random: Random) -> None:
    if random.random() < 0.5:
        del data[place(data, random) :]
    else:
        at = place(data, random)
        del data[at : at + random.choice([1, 8, 512])]


def insert(data: bytearray, random: Random) -> None:
    at = random.choice([place(data, random), len(data)])
    data[at:at] = random.randbytes(random.choice([1, 8, 64, 512]))


def swap(data: bytearray, random: Random) -> None:
    size = random.choice([8, 72, 512])
    one, other = sorted((place(data, random) // 8 * 8, place(data, random) // 8 * 8))
    if one + size <= other and other + size <= len(data):
        data[one : one + size], data[other : other + size] = (
            data[other : other + size],
            data[one : one + size],
        )


# The verdict


def surely_safe(sample: Sample, files: dict[str, bytes]) -> int:
    """Return the end of what the frames that are left prove, if nothing else does."""
    data, before = files[sample.last], sample.files[sample.last]
    proven = sample.sealed_end
    for position, header in places(before):
        at = data.find(before[position : position + header.size])
        if at >= 0 and at % 8 == 0:
            proven = max(proven, header.flushed_end)
    return proven


def check(sample: Sample, files: dict[str, bytes], *, proven_end: int) -> str:
    """Open and read everything; return how it went."""
    folder = disk_of(files)
    segments = {name: data for name, data in files.items() if name.endswith(".seg")}
    try:
        store = open_store(folder)
        rows, refused = rows_of(store)
    except Damaged:
        left = files_of(folder)
        assert {name: left[name] for name in segments} == segments
        return "refused"
    assert rows.items() <= sample.rows.items(), "a row is not what was written"
    missing = {o for o in sample.rows if o < proven_end} - rows.keys() - refused
    assert not missing, f"rows {sorted(missing)} are gone without a word"
    read_by_time(store)
    after = files_of(folder)
    for name, data in segments.items():
        if name == sample.last:  # it may be cut behind the last frame that counts
            assert data.startswith(after[name]), f"{name} was changed"
            assert len(after[name]) >= store.segments[-1].end_position
        else:
            assert after[name] == data, f"{name} was changed"
    if not store.faults and store.end == max(sample.rows) + 1:
        found = dict(zip(*(column.tolist() for column in store.open_scheduled()), strict=True))
        assert found == sample.scheduled
    return "faulty" if store.faults else "whole"


def read_by_time(store) -> None:
    """An append time finds a frame or damage, nothing else."""
    for append_ms in (0, 1 << 50):
        try:
            store.offset_at(append_ms)
        except Damaged:
            assert store.faults


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("mutate", [flip, zero, cut, insert, swap])
def test_a_damaged_file_is_served_right_or_reported(mutate: Mutate, is_closed: bool) -> None:
    known = sample(is_closed)
    verdicts = set()

    for seed in range(CASES):
        random = Random(f"{mutate.__name__} {seed}")
        name = random.choice([n for n in known.files if n.endswith(".seg")] * 2 + [*known.files])
        data = bytearray(known.files[name])
        mutate(data, random)
        files = known.files | {name: bytes(data)}
        proven = known.proven_end
        if name == known.last and not is_closed:
            proven = surely_safe(known, files)
        verdicts.add(check(known, files, proven_end=proven))

    assert len(verdicts) > 1, f"all cases were {verdicts}"


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_a_file_in_the_place_of_another_is_served_right_or_refused(is_closed: bool) -> None:
    known = sample(is_closed)
    names = [
        *known.files,
        segment_name(7),
        segment_name(99),
        segment_name(99).replace("seg", "due"),
    ]

    verdicts = [
        check(known, known.files | {name: known.files[source]}, proven_end=known.proven_end)
        for name in names
        for source in known.files
        if name != source
    ]

    assert {"refused", "whole"} <= set(verdicts)


@pytest.mark.parametrize("seed", range(60))
def test_many_damaged_files_never_yield_a_wrong_row(seed: int) -> None:
    random = Random(seed)
    known = sample(random.random() < 0.5)
    files = dict(known.files)
    for name in random.sample(sorted(files), random.randrange(2, 6)):
        data = bytearray(files[name])
        random.choice([flip, zero, insert, swap])(data, random)
        files[name] = bytes(data)

    check(known, files, proven_end=0)
