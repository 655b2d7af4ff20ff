"""The simulated disk can really lose, tear, flip, fail and lie, and never does so unasked."""

from random import Random

import pytest

from tests.kit.disk import Choose, DiskCounters, SimulatedFolder, keep_all, lose_all

SECTOR = 16


@pytest.fixture
def folder() -> SimulatedFolder:
    return SimulatedFolder(sector_bytes=SECTOR)


@pytest.fixture
def file(folder):
    """A file of three durable sectors of dots, its name durable too."""
    file = folder.create("a")
    file.write(0, [b"." * 3 * SECTOR])
    file.sync()
    folder.sync()
    return file


def read(folder: SimulatedFolder, name: str = "a") -> bytes:
    file = folder.open(name)
    return bytes(file.view(0, file.size()))


def outcomes(folder: SimulatedFolder, *, seeds: int = 400) -> set[bytes]:
    """Return all that a crash was seen to leave of the file `a`."""
    return {read(folder.crash(Random(seed).randrange)) for seed in range(seeds)}


def scripted(*answers: int) -> Choose:
    """Choose these, in this order, and nothing besides."""
    rest = iter(answers)
    return lambda _: next(rest)


def sectors(*fills: bytes) -> bytes:
    return b"".join(fill * SECTOR for fill in fills)


# Losing bytes.


def test_synced_bytes_survive_every_crash(folder, file):
    assert outcomes(folder) == {sectors(b".", b".", b".")}


def test_each_sector_of_a_write_survives_or_not_on_its_own(folder, file):
    file.write(0, [sectors(b"a", b"b", b"c")])

    assert outcomes(folder) == {
        sectors(first, second, third)
        for first in (b".", b"a")
        for second in (b".", b"b")
        for third in (b".", b"c")
    }


def test_a_later_write_may_survive_an_earlier_one(folder, file):
    file.write(0, [sectors(b"1")])
    file.write(2 * SECTOR, [sectors(b"2")])

    assert sectors(b".", b".", b"2") in outcomes(folder)


def test_a_sector_written_twice_is_old_or_either_but_never_a_blend(folder, file):
    file.write(0, [b"1" * 4])
    file.write(4, [b"2" * 4])
    rest = b"." * (3 * SECTOR - 8)

    assert outcomes(folder) == {b"." * 8 + rest, b"1111...." + rest, b"11112222" + rest}


def test_a_write_of_part_of_a_sector_keeps_the_rest_of_it(folder, file):
    file.write(SECTOR + 3, [b"x"])

    assert outcomes(folder) == {
        sectors(b".", b".", b"."),
        sectors(b".") + b"...x............" + sectors(b"."),
    }


def test_only_what_follows_the_last_sync_is_at_risk(folder, file):
    file.write(0, [sectors(b"a")])
    file.sync()
    file.write(SECTOR, [sectors(b"b")])

    assert outcomes(folder) == {sectors(b"a", b".", b"."), sectors(b"a", b"b", b".")}


def test_the_two_plain_crashes_take_all_or_nothing(folder, file):
    file.write(0, [sectors(b"a", b"b")])
    file.allocate(10 * SECTOR)
    folder.rename("a", "b")

    assert folder.crash(lose_all).names() == ["a"]
    assert read(folder.crash(lose_all)) == sectors(b".", b".", b".")
    assert folder.crash(keep_all).names() == ["b"]
    assert read(folder.crash(keep_all), "b") == sectors(b"a", b"b", b".") + bytes(7 * SECTOR)


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        ((0,), b"..."),
        ((1, 0), b"a.."),
        ((1, 1), b"ab."),
        ((2, 0, 1), b"a.c"),
        ((2, 1, 0, 2), b".b."),
        ((3, 0), b"..c"),
        ((4,), b"abc"),
    ],
    ids=["nothing", "head", "longer head", "one hole", "two holes", "by toss", "all"],
)
def test_a_crash_can_be_told_what_to_leave(folder, file, answers, left):
    file.write(0, [sectors(b"a", b"b", b"c")])

    assert read(folder.crash(scripted(*answers)))[::SECTOR] == left


def test_the_plainest_answers_lose_most():
    assert [lose_all(5), keep_all(5)] == [0, 4]


# Losing sizes.


def test_growth_survives_as_nothing_as_zeros_or_with_its_bytes(folder, file):
    file.write(3 * SECTOR, [sectors(b"d")])
    old = sectors(b".", b".", b".")

    assert outcomes(folder) == {old, old + bytes(SECTOR), old + sectors(b"d")}


def test_a_lost_allocation_leaves_the_file_short_and_cuts_what_was_written_there(folder, file):
    file.allocate(6 * SECTOR)
    file.write(0, [sectors(b"a")])
    file.write(4 * SECTOR, [sectors(b"e")])
    found = outcomes(folder)

    assert sectors(b"a", b".", b".") in found
    assert sectors(b"a", b".", b".") + bytes(3 * SECTOR) in found
    assert {len(content) for content in found} == {3 * SECTOR, 6 * SECTOR}


def test_a_truncation_survives_or_not(folder, file):
    file.truncate(SECTOR + 2)

    assert outcomes(folder) == {sectors(b".", b".", b"."), sectors(b".") + b".."}


def test_a_synced_truncation_keeps_its_bytes_gone_through_later_growth(folder, file):
    file.truncate(5)
    file.allocate(2 * SECTOR)
    file.sync()

    assert outcomes(folder) == {b"....." + bytes(2 * SECTOR - 5)}


def test_bytes_cut_before_a_sync_are_not_brought_back_by_it(folder, file):
    file.write(0, [sectors(b"a", b"b", b"c")])
    file.truncate(4)
    file.sync()

    assert outcomes(folder) == {b"aaaa"}


def test_bytes_written_and_cut_come_back_from_no_crash(folder, file):
    file.write(0, [sectors(b"a", b"b", b"c")])
    file.truncate(4)
    file.allocate(2 * SECTOR)

    assert read(folder.crash(keep_all)) == b"aaaa" + bytes(2 * SECTOR - 4)
    assert all(b"b" not in content and content.count(b"a") <= 4 for content in outcomes(folder))


def test_views_past_a_cut_turn_to_poison(file):
    view = file.view(0, 3 * SECTOR)
    file.truncate(SECTOR)

    assert bytes(view[:SECTOR]) == sectors(b".")
    assert set(view[SECTOR:]) == {0xDB}


# Losing names.


def test_a_file_whose_name_was_not_synced_may_vanish_though_its_bytes_were(folder):
    file = folder.create("a")
    file.write(0, [b"synced"])
    file.sync()

    assert folder.crash(lose_all).names() == []
    assert read(folder.crash(keep_all)) == b"synced"


def test_a_rename_may_survive_the_bytes_it_was_to_publish(folder):
    folder.create("a.tmp").write(0, [b"never synced"])
    folder.rename("a.tmp", "a")
    folder.sync()

    assert outcomes(folder) == {b"", bytes(12), b"never synced"}


def test_an_unsynced_replacement_shows_the_old_file_or_the_new(folder, file):
    new = folder.create("a.tmp")
    new.write(0, [b"new"])
    new.sync()
    folder.rename("a.tmp", "a")

    assert outcomes(folder) == {sectors(b".", b".", b"."), b"new"}


def test_a_removed_file_may_come_back(folder, file):
    folder.remove("a")

    assert folder.crash(lose_all).names() == ["a"]
    assert folder.crash(keep_all).names() == []


def test_changes_of_names_survive_in_their_order(folder):
    for name in ("a", "b", "c"):
        folder.create(name)
    folder.remove("a")
    survivors = {tuple(folder.crash(Random(seed).randrange).names()) for seed in range(100)}

    assert survivors == {(), ("a",), ("a", "b"), ("a", "b", "c"), ("b", "c")}


def test_synced_names_survive_every_crash(folder, file):
    folder.rename("a", "b")
    folder.create("c")
    folder.sync()

    assert folder.crash(lose_all).names() == ["b", "c"]


# The crash itself.


def test_the_crashed_folder_goes_on_and_the_survivor_does_not_feel_it(folder, file):
    view = file.view(0, 4)
    survivor = folder.crash(keep_all)
    file.write(0, [b"later"])
    survivor.open("a").write(0, [b"other"])

    assert bytes(view) == b"late"
    assert bytes(file.view(0, 5)) == b"later"
    assert read(survivor)[:5] == b"other"


def test_a_survivor_is_unlocked_faultless_and_wholly_durable(folder, file):
    folder.lock()
    folder.lie_on_sync = True
    folder.fail_next_sync()
    file.write(0, [b"kept"])
    survivor = folder.crash(keep_all)
    survivor.lock()

    assert read(survivor.crash(lose_all))[:4] == b"kept"
    assert not survivor.lie_on_sync
    assert survivor.counters == DiskCounters()


def test_a_survivor_tears_at_the_same_sectors(folder, file):
    survivor = folder.crash()
    survivor.open("a").write(0, [sectors(b"a", b"b", b"c")])

    assert sectors(b".", b"b", b".") in outcomes(survivor)


def test_the_same_choices_crash_the_same_way(folder, file):
    file.write(0, [sectors(b"a", b"b", b"c")])

    def crashed(choose: Choose) -> bytes:
        return read(folder.crash(choose))

    assert all(
        crashed(Random(seed).randrange) == crashed(Random(seed).randrange) for seed in range(20)
    )


def test_a_process_that_ends_leaves_the_page_cache_to_the_next(folder, file):
    file.write(0, [b"unsynced"])
    folder.close()
    later = folder.reopen()

    assert read(later)[:8] == b"unsynced"
    assert read(later.crash(lose_all))[:8] == b"." * 8
