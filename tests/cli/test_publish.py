"""`publish` stores what it is given, says where, and refuses what makes no sense in one line."""

import subprocess
import sys
import time
from uuid import UUID

import pytest


def values(ask, topic, count):
    """Return the values of a topic."""
    found = ask("replay", topic)
    rows = found if isinstance(found, list) else [found]
    assert len(rows) == count
    return [row["value"] for row in rows]


def test_a_message_is_published_with_all_it_has(ask, topic):
    made = ask("publish", topic, "hello", "--key", "k", "-H", "a=1", "--id", "m-1", "--acks", "all")
    found = ask("replay", topic)

    assert made == {
        "topic": topic, "partition": 0, "offset": 0, "id": "m-1", "is_new": True, "due_ms": None,
    }  # fmt: skip
    assert {**found, "appended_ms": 0} == {
        "topic": topic, "partition": 0, "offset": 0, "id": "m-1", "key": "k", "value": "hello",
        "headers": {"a": "1"}, "due_ms": None, "appended_ms": 0, "late_ms": None,
    }  # fmt: skip


def test_an_id_published_again_is_told(call, topic):
    first = call("publish", topic, "hello", "--id", "m-1")
    again = call("publish", topic, "hello", "--id", "m-1")

    assert first.stdout == f"{topic} 0/0, id m-1\n"
    assert again.stdout == f"{topic} 0/0: published before, nothing changed, id m-1\n"


def test_a_message_for_later_tells_when_it_is_due(call, ask, topic):
    before_ms = time.time_ns() // 1_000_000
    made = ask("publish", topic, "later", "--at", "+1h")
    said = call("publish", topic, "later", "--at", "+1h")

    assert 3_600_000 <= made["due_ms"] - before_ms < 3_700_000
    assert ", due in 1 h (2" in said.stdout
    assert ask("schedule", "count", topic)["total"] == 2


def test_a_tombstone_has_no_value(call, ask, topic):
    call("publish", topic, "--tombstone", "--key", "k")

    assert values(ask, topic, 1) == [None]


def test_each_line_of_a_file_is_a_message(call, ask, topic, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("one\ntwo\n\nfour")

    result = call("publish", topic, "--file", file, "--key", "k")

    assert result.stdout.startswith(f"Published 4 messages to {topic} in ")
    assert values(ask, topic, 4) == ["one", "two", "", "four"]


def test_lines_come_through_a_pipe(node, topic, ask):
    run = subprocess.run(
        [sys.executable, "-m", "waterclock", "publish", topic, "-", "--json", "-a", node.address],
        input="\n".join(map(str, range(3_000))), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (run.returncode, run.stderr) == (0, f"topic {topic} was made (1 partition)\n")
    assert values(ask, topic, 3_000) == [str(number) for number in range(3_000)]


def test_lines_can_be_for_later_and_expire(call, ask, topic, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("one\n")

    call("publish", topic, "--file", file, "--at", "+1h", "--expires", "+2h")

    (found,) = ask("schedule", "list", topic)["scheduled"]
    assert int(found["headers"]["wc-expires-ms"]) == found["due_ms"] + 7_200_000


def test_a_message_may_repeat(call, ask, topic):
    made = ask("publish", topic, "wake up", "--cron", "0 9 * * *", "--zone", "Europe/Berlin")
    named = call("publish", topic, "up", "--cron", "0 9 * * *", "--name", f"{topic[:50]}.daily")

    assert (made["cron"], made["zone"]) == ("0 9 * * *", "Europe/Berlin")
    assert f"daily repeats on {topic}: 0 9 * * * UTC, next in" in named.stdout


@pytest.mark.parametrize(
    "at", ["5m", "in 5 minutes", "next friday", "18:00", "2099-12-24", "tomorrow 9:00", "6pm"]
)
def test_times_are_read_as_people_write_them(ask, topic, at):
    made = ask("publish", topic, "x", "--at", at)

    assert made["due_ms"] > time.time_ns() // 1_000_000


def test_a_time_of_day_is_meant_where_it_was_typed(ask, topic, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    there = ask("publish", topic, "x", "--at", "2099-12-24 18:00")["due_ms"]

    named = ask("publish", topic, "x", "--at", "2099-12-24 18:00 UTC")["due_ms"]

    assert named - there == (5 * 60 + 45) * 60_000


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ([], "give one of VALUE, --file FILE, --tombstone, or - to read lines from stdin"),
        (["x", "--tombstone"], "give one of VALUE, --file FILE, --tombstone, or -"),
        (["x", "--zone", "UTC"], "--zone and --name belong to --cron"),
        (["x", "--cron", "* * * * *", "--at", "+1s"], "what repeats has no --at, --id"),
        (["x", "--cron", "often"], "cron"),
        (["x", "--at", "soon"], "--at: 'soon' is not a time that is read here. Write +5m"),
        (["x", "--header", "a"], "--header 'a' is not of the form name=value"),
        (["x", "--acks", "1"], "acks: '1' is not one of quorum, leader, all"),
        (["x", "--cron", "* * * * *", "--acks", "all"], "what repeats has no --at, --id"),
        (["--file", "/nowhere"], "cannot read /nowhere: No such file or directory"),
        (["--file", "/dev/null", "--id", "a"], "--cron and --id are for one message"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call, topic, args, line):
    result = call("publish", topic, *args)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_bytes_that_are_no_text_can_be_typed(call, ask, topic):
    call("publish", topic, b"\xff\x00".decode(errors="surrogateescape"))

    assert values(ask, topic, 1) == [{"base64": "/wA="}]


def test_an_id_of_ours_is_shown_as_it_can_be_typed_again(call, ask, topic):
    shown = call("publish", topic, "later", "--at", "+1h").stdout.split(" id ")[1].split(",")[0]

    assert UUID(shown).version == 7
    assert ask("schedule", "cancel", topic, shown, "--yes")["outcomes"] == [
        {"id": shown, "outcome": "cancelled", "reached": 1}
    ]


def test_a_topic_that_was_made_is_told_once_on_stderr(call, topic, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("one\ntwo\n")

    first = call("publish", f"{topic}-a", "hello", "--json")
    again = call("publish", f"{topic}-a", "hello")
    lines = call("publish", f"{topic}-b", "--file", file)

    assert first.stderr == f"topic {topic}-a was made (1 partition)\n"
    assert again.stderr == ""
    assert lines.stderr == f"topic {topic}-b was made (1 partition)\n"
