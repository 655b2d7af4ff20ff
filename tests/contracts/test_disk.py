"""The rules of `storage.disk.File`, on the operating system's files and the simulated ones."""

import threading
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waterclock.model.errors import Closed
from waterclock.storage.folders.folder import File


def content(file: File) -> bytes:
    return bytes(file.view(0, file.size()))


# Writing.


def test_parts_are_written_one_after_the_other(file):
    file.write(0, [b"one", bytearray(b"two"), memoryview(b"three")])

    assert content(file) == b"onetwothree"


def test_more_parts_than_the_system_takes_at_once_are_all_written(file):
    parts = [b"%05d" % number for number in range(3_000)]
    file.write(0, parts)

    assert content(file) == b"".join(parts)


def test_empty_parts_are_skipped(file):
    file.write(0, [b"", b"a", b"", memoryview(b""), b"b"])

    assert content(file) == b"ab"


@pytest.mark.parametrize("parts", [[], [b""], [b"", memoryview(b"")]])
def test_writing_nothing_changes_nothing_even_past_the_end(file, parts):
    file.write(100, parts)

    assert file.size() == 0


def test_a_part_of_wide_items_counts_in_bytes(file):
    words = memoryview(bytes(range(16))).cast("I")
    file.write(0, [b"head", words])

    assert content(file) == b"head" + bytes(range(16))


def test_a_view_of_one_file_can_be_written_to_another(folder, file):
    file.write(0, [b"to be copied"])
    copy = folder.create("copy")
    copy.write(0, [file.view(6, 12)])

    assert content(copy) == b"copied"


@pytest.mark.parametrize("waits", [False, True])
def test_writing_out_leaves_everything_as_it_is(file, waits):
    file.write(0, [b"0123456789"])

    file.write_out(2, 5, waits=waits)
    file.write_out(5, 5, waits=waits)

    assert content(file) == b"0123456789"


def test_a_closed_file_is_not_written_out(file):
    file.write(0, [b"0123456789"])
    file.close()

    with pytest.raises(Closed):
        file.write_out(0, 10, waits=False)


def test_a_write_in_the_middle_leaves_the_rest(file):
    file.write(0, [b"0123456789"])
    file.write(3, [b"abc"])

    assert content(file) == b"012abc6789"


def test_a_write_across_the_end_grows_the_file(file):
    file.write(0, [b"0123"])
    file.write(2, [b"abcd"])

    assert content(file) == b"01abcd"


def test_a_write_past_the_end_leaves_zeros_between(file):
    file.write(0, [b"ab"])
    file.write(5, [b"c"])

    assert content(file) == b"ab\0\0\0c"


def test_a_write_before_the_start_is_our_bug(file):
    with pytest.raises(AssertionError):
        file.write(-1, [b"a"])


def test_what_was_written_is_there_for_the_next_process(handle):
    first = handle()
    first.create("a").write(0, [b"written"])
    first.close()
    second = handle()

    assert second.names() == ["a"]
    assert second.open("a").size() == 7
    assert content(second.open("a")) == b"written"


# Views.


def test_a_view_is_the_range_asked_for(file):
    file.write(0, [b"0123456789"])

    assert bytes(file.view(2, 5)) == b"234"


@pytest.mark.parametrize("size", [0, 10])
def test_an_empty_view_may_be_taken_at_either_end(file, size):
    file.allocate(size)

    assert bytes(file.view(0, 0)) == b""
    assert bytes(file.view(size, size)) == b""


def test_a_view_cannot_be_written_through(file):
    file.write(0, [b"fixed"])
    view = file.view(0, 5)

    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 0


@pytest.mark.parametrize(("start", "end"), [(0, 11), (-1, 5), (6, 5), (11, 11)])
def test_a_view_outside_the_file_is_our_bug(file, start, end):
    file.write(0, [b"0123456789"])

    with pytest.raises(AssertionError):
        file.view(start, end)


def test_a_view_taken_after_a_write_shows_it(file):
    file.write(0, [b"old old"])
    file.view(0, 7)
    file.write(0, [b"new"])

    assert bytes(file.view(0, 7)) == b"new old"


def test_views_outlast_growth_by_write(file):
    file.write(0, [b"first"])
    view = file.view(0, 5)
    for _ in range(12):
        file.write(file.size(), [bytes(file.size())])

    assert bytes(view) == b"first"
    assert file.size() == 5 << 12


def test_views_outlast_growth_by_allocation(file):
    file.write(0, [b"first"])
    view = file.view(0, 5)
    file.allocate(1 << 20)
    file.write(1 << 19, [b"far"])

    assert bytes(view) == b"first"
    assert bytes(file.view(1 << 19, (1 << 19) + 3)) == b"far"


def test_appending_does_not_change_what_a_view_was_told(file):
    file.allocate(100)
    file.write(0, [b"first"])
    view = file.view(0, 5)
    file.write(5, [b"second"])

    assert bytes(view) == b"first"


def test_views_outlast_rename_and_replacement(folder, file):
    other = folder.create("b.seg")
    file.write(0, [b"mover"])
    other.write(0, [b"moved upon"])
    views = file.view(0, 5), other.view(0, 10)
    folder.rename("a.seg", "b.seg")

    assert [bytes(view) for view in views] == [b"mover", b"moved upon"]


def test_views_outlast_removal_and_close(handle):
    folder = handle()
    file = folder.create("a")
    file.write(0, [b"outlasts"])
    view = file.view(0, 8)
    part = view[3:]
    folder.remove("a")
    file.close()
    folder.close()
    del file

    assert bytes(view) == b"outlasts"
    assert bytes(part) == b"lasts"


def test_views_below_a_cut_stay_valid(file):
    file.write(0, [b"below", b"above"])
    below = file.view(0, 5)
    file.truncate(5)
    file.allocate(50_000)

    assert bytes(below) == b"below"


# Sizes.


def test_allocated_bytes_are_zeros_and_count(file):
    file.write(0, [b"head"])
    file.allocate(10_000)

    assert file.size() == 10_000
    assert content(file) == b"head".ljust(10_000, b"\0")


def test_allocating_less_than_there_is_changes_nothing(file):
    file.write(0, [b"0123456789"])
    file.allocate(5)
    file.allocate(10)

    assert content(file) == b"0123456789"


def test_a_write_within_the_allocation_keeps_the_size(file):
    file.allocate(1_000)
    file.write(990, [b"0123456789"])

    assert file.size() == 1_000


def test_truncation_cuts_the_end_off(file):
    file.write(0, [b"0123456789"])
    file.truncate(4)

    assert content(file) == b"0123"


def test_truncating_to_the_size_changes_nothing(file):
    file.write(0, [b"0123"])
    file.truncate(4)

    assert content(file) == b"0123"


def test_an_emptied_file_can_be_written_again(file):
    file.write(0, [b"0123456789"])
    file.view(0, 10).release()
    file.truncate(0)
    file.write(0, [b"ab"])

    assert content(file) == b"ab"


@pytest.mark.parametrize("size", [11, -1])
def test_truncation_only_shrinks(file, size):
    file.write(0, [b"0123456789"])

    with pytest.raises(AssertionError):
        file.truncate(size)


def test_what_was_cut_does_not_come_back_on_growth(file):
    file.write(0, [b"secret" * 1_000])
    file.truncate(3)
    file.allocate(100)
    file.write(200, [b"end"])

    assert content(file) == b"sec".ljust(200, b"\0") + b"end"


# Syncing and closing.


def test_syncing_changes_nothing_readers_see(file):
    file.allocate(100)
    file.write(0, [b"same"])
    before = content(file)
    file.sync()
    file.sync()

    assert content(file) == before


def test_a_file_may_be_synced_from_another_thread_while_written(file):
    done = threading.Event()
    failures: list[BaseException] = []

    def keep_syncing() -> None:
        try:
            while not done.is_set():
                file.sync()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=keep_syncing)
    thread.start()
    for number in range(300):
        file.write(number * 4, [number.to_bytes(4, "little")])
    done.set()
    thread.join()

    assert failures == []
    assert content(file) == b"".join(number.to_bytes(4, "little") for number in range(300))


def test_a_closed_file_refuses_all_use(file):
    file.write(0, [b"0123"])
    file.close()

    for act in (
        lambda: file.write(0, [b"a"]),
        lambda: file.view(0, 1),
        lambda: file.allocate(100),
        lambda: file.truncate(0),
        file.sync,
    ):
        with pytest.raises(Closed, match=r"a\.seg"):
            act()


# All together.

sizes = st.integers(0, 20_000)
steps = st.one_of(
    st.tuples(st.just("write"), sizes, st.lists(st.binary(max_size=3_000), max_size=3)),
    st.tuples(st.just("allocate"), sizes, st.none()),
    st.tuples(st.just("truncate"), sizes, st.none()),
    st.tuples(st.just("sync"), st.just(0), st.none()),
)


# The disk is made anew in each example; only its kind is shared.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=20))
def test_any_history_reads_as_the_same_history_of_a_bytearray(new_disk, history):
    with closing(new_disk()()) as folder:
        file = folder.create("a")
        model = bytearray()
        for verb, number, parts in history:
            match verb:
                case "write":
                    file.write(number, parts)
                    data = b"".join(parts)
                    if data and number > len(model):
                        model.extend(bytes(number - len(model)))
                    model[number : number + len(data)] = data
                case "allocate":
                    file.allocate(number)
                    model.extend(bytes(max(0, number - len(model))))
                case "truncate":
                    cut = min(number, file.size())
                    file.truncate(cut)
                    del model[cut:]
                case "sync":
                    file.sync()
            assert file.size() == len(model)
            assert file.view(0, file.size()) == model
