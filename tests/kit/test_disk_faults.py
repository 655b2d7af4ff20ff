"""Rot, full disks, failing and lying syncs and writes, one by one and with everything at once."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.disk import DiskCounters, SimulatedFolder, keep_all, lose_all
from waterclock.model.errors import StorageFailed, StorageFull

SECTOR = 16


@pytest.fixture
def folder() -> SimulatedFolder:
    return SimulatedFolder(sector_bytes=SECTOR)


@pytest.fixture
def file(folder):
    file = folder.create("a")
    file.write(0, [b"." * SECTOR])
    file.sync()
    folder.sync()
    return file


def read(folder: SimulatedFolder, name: str = "a") -> bytes:
    file = folder.open(name)
    return bytes(file.view(0, file.size()))


# Rot.


def test_a_flipped_bit_is_seen_now_and_after_a_crash(folder, file):
    folder.flip("a", 3, 0)

    assert bytes(file.view(0, 5)) == b".../."
    assert read(folder.crash(lose_all))[:5] == b".../."


def test_a_flipped_bit_outlives_the_sync_of_the_write_it_fell_in(folder, file):
    file.write(0, [b"aaaa"])
    folder.flip("a", 0, 1)
    file.sync()

    assert read(folder.crash(lose_all))[:4] == b"caaa"


def test_flipping_outside_the_file_is_our_bug(folder, file):
    with pytest.raises(AssertionError):
        folder.flip("a", SECTOR, 0)


# Full disks.


def test_an_allocation_that_does_not_fit_changes_nothing():
    folder = SimulatedFolder(capacity_bytes=100)
    file = folder.create("a")
    file.allocate(60)

    with pytest.raises(StorageFull, match="a"):
        file.allocate(101)
    assert file.size() == 60


def test_a_write_that_does_not_fit_is_written_in_part():
    folder = SimulatedFolder(capacity_bytes=10)
    file = folder.create("a")
    file.write(0, [b"0123"])

    with pytest.raises(StorageFull):
        file.write(2, [b"abcdefghijkl"])
    assert bytes(file.view(0, file.size())) == b"01abcdefgh"


def test_a_write_within_the_allocation_needs_no_room():
    folder = SimulatedFolder(capacity_bytes=10)
    file = folder.create("a")
    file.allocate(10)
    file.write(0, [b"0123456789"])

    assert read(folder) == b"0123456789"


@pytest.mark.parametrize("free", ["remove", "truncate", "rename", "raise"])
def test_room_is_made_by_removing_cutting_replacing_or_buying(free):
    folder = SimulatedFolder(capacity_bytes=10)
    old, new = folder.create("old"), folder.create("new")
    old.allocate(8)
    match free:
        case "remove":
            folder.remove("old")
        case "truncate":
            old.truncate(0)
        case "rename":
            folder.rename("new", "old")
        case _:
            folder.capacity_bytes = 18

    new.allocate(10)


def test_the_capacity_outlives_a_crash():
    survivor = SimulatedFolder(capacity_bytes=10).crash()

    assert survivor.capacity_bytes == 10


# Failing.


def test_after_a_failed_sync_the_bytes_are_read_but_never_made_durable(folder, file):
    file.write(0, [b"lost"])
    folder.fail_next_sync()
    with pytest.raises(StorageFailed, match="a"):
        file.sync()
    file.sync()

    assert bytes(file.view(0, 4)) == b"lost"
    assert read(folder.crash(keep_all))[:4] == b"...."


def test_growth_before_a_failed_sync_may_become_durable_zeros(folder, file):
    file.write(SECTOR, [b"lost"])
    folder.fail_next_sync()
    with pytest.raises(StorageFailed):
        file.sync()
    file.sync()

    assert read(folder.crash(lose_all)) == b"." * SECTOR + bytes(4)


def test_bytes_written_again_after_a_failed_sync_are_made_durable(folder, file):
    file.write(0, [b"again"])
    folder.fail_next_sync()
    with pytest.raises(StorageFailed):
        file.sync()
    file.write(0, [b"again"])
    file.sync()

    assert read(folder.crash(lose_all))[:5] == b"again"


def test_a_failed_sync_that_drops_nothing_can_be_made_good(folder, file):
    file.write(0, [b"kept"])
    folder.fail_next_sync(drop=False)
    with pytest.raises(StorageFailed):
        file.sync()
    file.sync()

    assert read(folder.crash(lose_all))[:4] == b"kept"


def test_a_failed_sync_of_the_folder_leaves_the_names_pending(folder, file):
    folder.create("b")
    folder.fail_next_folder_sync()
    with pytest.raises(StorageFailed):
        folder.sync()

    assert folder.crash(lose_all).names() == ["a"]
    assert folder.crash(keep_all).names() == ["a", "b"]
    folder.sync()
    assert folder.crash(lose_all).names() == ["a", "b"]


def test_a_failed_sync_of_the_folder_does_not_fail_files(folder, file):
    folder.fail_next_folder_sync()
    file.sync()

    with pytest.raises(StorageFailed):
        folder.sync()


def test_a_lying_sync_returns_and_saves_nothing(folder, file):
    folder.lie_on_sync = True
    file.write(0, [b"lost"])
    folder.create("b")
    file.sync()
    folder.sync()

    assert read(folder.crash(lose_all))[:4] == b"...."
    assert folder.crash(lose_all).names() == ["a"]


def test_a_disk_that_stops_lying_saves_all_it_held_back(folder, file):
    folder.lie_on_sync = True
    file.write(0, [b"kept"])
    file.sync()
    folder.lie_on_sync = False
    file.sync()

    assert read(folder.crash(lose_all))[:4] == b"kept"


def test_a_failing_write_is_written_in_part_and_fails_once(folder, file):
    folder.fail_next_write(after_bytes=3)
    with pytest.raises(StorageFailed, match="a"):
        file.write(0, [b"ab", b"cd"])

    assert bytes(file.view(0, 5)) == b"abc.."
    file.write(0, [b"abcd"])
    assert bytes(file.view(0, 5)) == b"abcd."


# Watching.


def test_the_disk_counts_what_it_did(folder, file):
    file.write(0, [b"12345"])
    file.sync()
    folder.sync()

    assert folder.counters == DiskCounters(
        writes=2, bytes_written=SECTOR + 5, syncs=2, bytes_synced=2 * SECTOR, folder_syncs=2
    )


def test_the_hook_sees_each_sync_by_name(folder, file):
    seen: list[str] = []
    folder.on_sync = seen.append
    file.sync()
    folder.sync()

    assert seen == ["a", "."]


def test_what_is_written_during_a_sync_is_not_covered_by_it(folder, file):
    folder.on_sync = lambda _: file.write(4, [b"late"])
    file.write(0, [b"soon"])
    file.sync()

    assert read(folder.crash(lose_all))[:8] == b"soon...."
    assert read(folder.crash(keep_all))[:8] == b"soonlate"


def test_names_made_during_a_sync_of_the_folder_are_not_covered_by_it(folder, file):
    folder.create("b")
    folder.on_sync = lambda _: folder.create("c")
    folder.sync()

    assert folder.crash(lose_all).names() == ["a", "b"]


@pytest.mark.parametrize("outer", ["a", "."])
def test_of_two_syncs_at_once_neither_covers_what_came_after_both(folder, file, outer):
    def sync_within(name: str) -> None:
        folder.on_sync = None
        folder.create("b")
        file.write(4, [b"both"])
        file.sync()
        folder.sync()
        folder.create("c")
        file.write(8, [b"none"])

    folder.on_sync = sync_within
    folder.create("early")
    file.write(0, [b"soon"])
    (folder.sync if outer == "." else file.sync)()
    survivor = folder.crash(lose_all)

    assert survivor.names() == ["a", "b", "early"]
    assert read(survivor)[:12] == b"soonboth...."


def test_a_crash_in_the_middle_of_a_sync_may_still_lose_it(folder, file):
    crashed: list[SimulatedFolder] = []
    folder.on_sync = lambda _: crashed.append(folder.crash(lose_all))
    file.write(0, [b"kept"])
    file.sync()

    assert read(crashed[0])[:4] == b"...."
    assert read(folder.crash(lose_all))[:4] == b"kept"


def test_a_file_cut_during_its_sync_stays_cut(folder, file):
    folder.on_sync = lambda _: file.truncate(2)
    file.write(0, [b"a" * SECTOR])
    file.sync()
    folder.on_sync = None
    file.sync()

    assert read(folder.crash(lose_all)) == b"aa"


# Everything at once.

positions = st.integers(0, 6 * SECTOR)
steps = st.one_of(
    st.tuples(st.just("write"), positions, st.binary(min_size=1, max_size=3 * SECTOR)),
    st.tuples(st.just("allocate"), positions, st.just(b"")),
    st.tuples(st.just("truncate"), positions, st.just(b"")),
    st.tuples(st.just("sync"), st.just(0), st.just(b"")),
)


@given(history=st.lists(steps, max_size=12), data=st.data())
def test_every_sector_after_a_crash_is_one_it_had_since_the_last_sync(history, data):
    folder = SimulatedFolder(sector_bytes=SECTOR)
    file = folder.create("a")
    folder.sync()
    states = [b""]
    cuts = [8 * SECTOR]
    for verb, number, payload in history:
        match verb:
            case "write":
                file.write(number, [payload])
            case "allocate":
                file.allocate(number)
            case "truncate":
                cuts.append(min(number, file.size()))
                file.truncate(cuts[-1])
            case "sync":
                file.sync()
                states, cuts = [], [8 * SECTOR]
        states.append(read(folder))

    survivor = read(folder.crash(lambda count: data.draw(st.integers(0, count - 1))))

    assert len(survivor) in {len(state) for state in states}
    # Where a cut was pending, old and new bytes may mix below the sector; elsewhere never.
    whole = min(cuts) // SECTOR * SECTOR
    for start in range(0, min(whole, len(survivor)), SECTOR):
        stop = min(start + SECTOR, len(survivor))
        had = {state[start:stop].ljust(stop - start, b"\0") for state in states}
        assert survivor[start:stop] in had


@given(seed=st.integers(0, 2**32), writes=st.lists(st.binary(min_size=1, max_size=2_000)))
def test_a_synced_log_survives_whatever_was_appended_after(seed, writes):
    folder = SimulatedFolder()
    file = folder.create("a")
    folder.sync()
    synced = b""
    for number, data in enumerate(writes):
        file.write(file.size(), [data])
        if number % 3 == 0:
            file.sync()
            synced = read(folder)

    assert read(folder.crash(Random(seed).randrange)).startswith(synced)
