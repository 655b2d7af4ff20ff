"""`groups` shows how far groups have come, moves and deletes them."""

import pytest


@pytest.fixture
def read(call, ask, topic):
    """Publish five messages and let group `g` ack two of them."""
    for number in range(5):
        call("publish", topic, f"value {number}")
    ask("subscribe", topic, "-g", "g", "-n", 2)
    return topic


def test_groups_are_listed_with_their_lag(call, ask, read):
    (found,) = ask("groups", "list", read)["groups"]
    said = call("groups", "list", read)

    assert (found["topic"], found["group"], found["lag"], found["members"]) == (read, "g", 3, [])
    assert said.stdout.splitlines()[1].split() == [read, "g", "0", "3", "0", "0", "0"]


def test_a_group_is_shown_by_partition(call, ask, read):
    (place,) = ask("groups", "show", read, "g")["partitions"]
    said = call("groups", "show", read, "g")

    assert place == {
        "partition": 0, "member": None, "committed": 2, "end_offset": 5, "lag": 3, "unacked": 0,
        "waiting": 0, "missed": 0,
    }  # fmt: skip
    assert said.stdout.splitlines()[0] == f"g of {read}: 0 members, lag 3"
    assert "nobody" in said.stdout


@pytest.mark.parametrize(
    ("aim", "lag"),
    [
        (["--to", "latest"], 0),
        (["--to", "earliest"], 5),
        (["--to", "1h ago"], 5),
        (["--offset", "0/4"], 1),
    ],
)
def test_a_group_goes_on_where_it_is_told_to(ask, read, aim, lag):
    assert ask("groups", "seek", read, "g", *aim, "--yes")["lag"] == lag


def test_moving_a_group_needs_consent(call, ask, read):
    result = call("groups", "seek", read, "g", "--to", "latest")

    assert result.exit_code == 2
    assert f"Move group g of {read}, with a lag of 3, to latest?" in result.stderr
    assert ask("groups", "show", read, "g")["lag"] == 3


def test_a_group_is_deleted_only_with_consent(call, ask, read):
    assert call("groups", "delete", read, "g").exit_code == 2
    assert call("groups", "delete", read, "g", "--yes").stdout == f"Deleted group g of {read}.\n"
    assert ask("groups", "list", read) == {"groups": []}


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["show", "nowhere", "g"], "there is no topic 'nowhere'"),
        (["seek", "t", "g"], "say where to go on: --to earliest"),
        (["seek", "t", "g", "--to", "latest", "--offset", "0/1"], "say where to go on"),
        (["seek", "t", "g", "--offset", "4"], "write partition/offset, as in 0/12"),
    ],
)
def test_a_mistake_is_told_in_one_line(call, args, line):
    result = call("groups", *args)

    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
