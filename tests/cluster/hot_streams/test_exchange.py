"""What partitions say to each other so that polls and messages meet."""

import pytest

from waterclock.cluster.hot_streams.exchange import Exchange, Has, Pull, Tell, Want, Watch

NODES = ("root", "one", "two")


@pytest.fixture
def root():
    it = Exchange("root", "root")
    it.set_others(NODES, ())
    return it


@pytest.fixture
def one():
    it = Exchange("one", "root")
    it.set_others(NODES, ())
    return it


def test_an_empty_partition_tells_the_root_that_polls_wait(one):
    assert one.changed(0, 3) == [Want("root", 3)]
    assert one.changed(0, 4) == []  # one is under way


def test_a_partition_with_messages_wants_none(one):
    assert one.changed(2, 0) == []


def test_the_root_names_itself_if_it_has_messages(root):
    root.changed(5, 0)

    assert root.wanted("one", 3) == [Tell("one", "root")]


def test_the_root_without_messages_asks_all_others(root):
    assert root.wanted("one", 3) == [Watch("one"), Watch("two")]
    assert root.has("two", 1) == [Tell("one", "two")]


def test_a_message_at_the_root_goes_to_whoever_wanted_first(root):
    root.wanted("two", 1)
    root.wanted("one", 1)

    assert root.changed(1, 0) == [Tell("two", "root")]
    assert root.changed(2, 0) == [Tell("one", "root")]


def test_who_still_wants_has_the_others_watched_again(root):
    root.wanted("one", 1)
    root.changed(0, 1)  # the root's own poll

    assert root.has("two", 1) == [Tell("one", "two"), Watch("two")]
    assert root.has("two", 1) == [Pull("two", 1)]


def test_a_watched_partition_says_at_once_that_it_has_messages(one):
    one.changed(2, 0)

    assert one.watched() == [Has(2)]
    assert one.changed(3, 0) == []  # it was said


def test_a_watched_partition_says_so_when_messages_come(one):
    assert one.watched() == []
    assert one.changed(0, 1) == [Want("root", 1)]
    assert one.changed(1, 0) == [Has(1)]


def test_who_is_told_takes_as_many_as_polls_wait(one):
    one.changed(0, 1)
    one.changed(0, 7)

    assert one.answered("two") == [Pull("two", 7)]


def test_who_is_told_and_needs_nothing_any_more_takes_nothing(one):
    one.changed(0, 1)
    one.changed(0, 0)

    assert one.answered("two") == []
    assert one.changed(0, 1) == [Want("root", 1)]


def test_more_is_taken_without_asking_the_root(one):
    one.changed(0, 3)
    one.answered("two")

    assert one.pulled("two", 9, backlog=0, polls=2) == [Pull("two", 2)]
    assert one.pulled("two", 0, backlog=0, polls=1) == [Want("root", 1)]


def test_a_partition_that_wanted_and_has_messages_is_not_watched_for_itself(root, one):
    root.wanted("one", 1)

    assert root.has("one", 4) == [Tell("one", "one")]
    one.changed(0, 1)
    assert one.answered("one") == [Want("root", 1)]


def test_what_failed_is_tried_again_at_the_tick(root, one):
    one.changed(0, 1)
    assert one.answered(None) == []
    assert one.changed(0, 2) == []
    assert one.tick() == [Want("root", 2)]

    root.wanted("one", 1)
    assert root.has("two", 0) == []
    assert root.tick() == [Watch("two")]


def test_the_root_empties_what_is_closing_as_far_as_it_has_room(root):
    root.changed(0, 0, room=3)

    assert root.set_others(NODES, ("two",)) == [Watch("two")]
    assert root.has("two", 10) == [Pull("two", 3)]
    assert root.pulled("two", 7, backlog=3, polls=0) == [Watch("two")]
    root.changed(3, 0, room=0)
    assert root.has("two", 7) == []
    assert root.tick() == [Watch("two")]


def test_who_has_no_partition_any_more_wants_nothing(root):
    root.wanted("two", 1)
    root.set_others(("root", "one"), ())

    assert root.changed(1, 0) == []
