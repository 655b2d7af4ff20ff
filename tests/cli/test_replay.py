"""`replay` prints the past by time, offset or name; `replays` lists and forgets."""

import pytest

from waterclock.cli.output.terminal import time_text


@pytest.fixture
def written(call, topic, tmp_path):
    """Publish ten messages; return the topic."""
    file = tmp_path / "lines"
    file.write_text("".join(f"value {number}\n" for number in range(10)))
    call("publish", topic, "--file", file)
    return topic


def values(call, topic, *options):
    """Return the values a replay prints."""
    result = call("replay", topic, "--raw", *options)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


ALL = [f"value {number}" for number in range(10)]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], ALL),
        (["--from-offset", 7], ALL[7:]),
        (["--from-offset", 2, "--count", 3], ALL[2:5]),
        (["--count", 4], ALL[:4]),
        (["--since", "1h ago"], ALL),
        (["--until", "-1h"], []),
        (["--partition", 0], ALL),
    ],
)
def test_a_stretch_of_the_past_is_printed(call, written, options, found):
    assert values(call, written, *options) == found


def test_lines_are_for_people_and_objects_for_machines(call, ask, written):
    line = call("replay", written, "-n", 1).stdout
    rows = ask("replay", written, "-n", 2)

    assert [row["offset"] for row in rows] == [0, 1]
    assert line == f"0/0  {time_text(rows[0]['appended_ms'])}  value 0\n"


def test_a_named_replay_is_listed_and_forgotten(call, ask, written):
    name = f"audit-{written[-8:]}"

    values(call, written, "--name", name)
    found = {each["name"]: each for each in ask("replays")["replays"]}[name]

    assert (found["topic"], found["done"], found["ends"]) == (written, {"0": 10}, {"0": 10})
    assert values(call, written, "--name", name) == []
    assert name in call("replays").stdout
    assert call("replays", "delete", name).exit_code == 2
    assert call("replays", "delete", name, "--yes").stdout == f"Forgot replay {name}.\n"
    assert call("replays", "delete", name, "--yes").stderr.endswith(f"no replay '{name}'\n")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--from-offset", 1, "--since", "-1h"], "give times or --from-offset, not both"),
        (["--by-due"], "--by-due needs --since or --until"),
        (["--since", "once"], "since: 'once' is not a time that is read here. Write -1h"),
        (["--partition", 7], "there is no partition"),
    ],
)
def test_a_mistake_is_told_in_one_line(call, written, options, line):
    result = call("replay", written, *options)

    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_last_of_each_key_is_printed_where_a_snapshot_is(call, written):
    """Without one it is all there is; bounds make no sense either way."""
    assert values(call, written, "--compacted") == ALL
    refused = call("replay", written, "--compacted", "--from-offset", 1)
    assert refused.exit_code != 0
    assert "--compacted" in refused.output
