"""`schedule` shows what is to come, and cancels, moves and repeats it."""

import pytest

from tests.cli.terminals import at_terminal


@pytest.fixture
def planned(call, topic):
    """Plan five messages over the coming days; return the topic."""
    for number, at in enumerate(("+30s", "+30m", "+2h", "+3h", "+40d")):
        kind = "order" if number % 2 else "table"
        call(
            "publish", topic, f"value {number}", "--at", at, "--id", f"m-{number}",
            "--key", f"{kind}-{number}", "--header", f"kind={kind}",
        )  # fmt: skip
    return topic


def ids(found):
    return [each["id"] for each in found["scheduled"]]


def test_what_is_to_come_is_listed_the_soonest_first(ask, planned):
    found = ask("schedule", "list", planned)

    assert ids(found) == ["m-0", "m-1", "m-2", "m-3", "m-4"]
    assert found["total"] == 5
    assert [each["count"] for each in found["horizons"]] == [0, 1, 1, 2, 0, 1]
    first = found["scheduled"][0]
    assert (first["key"], first["value"], first["value_bytes"]) == ("table-0", None, 7)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--limit", 2], ["m-0", "m-1"]),
        (["--key", "order-3"], ["m-3"]),
        (["--key-prefix", "order-"], ["m-1", "m-3"]),
        (["--header", "kind=table"], ["m-0", "m-2", "m-4"]),
        (["--from", "+1h"], ["m-2", "m-3", "m-4"]),
        (["--until", "+1h"], ["m-0", "m-1"]),
        (["--from", "+1h", "--until", "+1d", "--key-prefix", "order"], ["m-3"]),
        (["--key", "nobody"], []),
    ],
)
def test_the_listing_can_be_narrowed(ask, planned, options, found):
    assert ids(ask("schedule", "list", planned, *options)) == found


def test_values_are_shown_if_asked_for(ask, call, planned):
    found = ask("schedule", "list", planned, "--values", "--limit", 1)

    assert found["scheduled"][0]["value"] == "value 0"
    assert "value 0" in call("schedule", "list", planned, "--values").stdout
    assert "value 0" not in call("schedule", "list", planned).stdout


def test_the_table_stands_above_a_histogram(call, planned):
    lines = call("schedule", "list", planned).stdout.splitlines()

    assert lines[0].split() == ["due", "in", "key", "id", "size", "position"]
    assert lines[3].split()[2:5] == ["1", "h", "59"]
    assert lines[3].split()[-5:] == ["table-2", "m-2", "7", "B", "0/2"]
    assert lines[7] == f"5 messages scheduled in {planned}:"
    assert [line.split()[:3] for line in lines[8:]] == [
        ["within", "1", "min"], ["within", "1", "h"], ["within", "1", "d"], ["within", "30", "d"],
        ["beyond", "30", "d"],
    ]  # fmt: skip
    assert [line.count("█") for line in lines[8:]] == [16, 16, 32, 0, 16]


def test_all_topics_are_listed_together(ask, call, planned):
    found = ask("schedule", "list", "--limit", 10_000)["scheduled"]

    assert planned in [each["topic"] for each in found]
    assert [each["due_ms"] for each in found] == sorted(each["due_ms"] for each in found)
    assert "topic" in call("schedule").stdout.splitlines()[0]


def test_nothing_to_come_is_said_in_one_line(call, topic):
    call("publish", topic, "now")

    assert call("schedule", "list", topic).stdout == f"0 messages scheduled in {topic}.\n"


def test_what_is_to_come_is_counted(call, ask, planned):
    assert ask("schedule", "count", planned)["total"] == 5
    assert call("schedule", "count", planned).stdout.startswith("5 messages scheduled in ")


def test_messages_are_cancelled_by_id_or_place(call, ask, planned):
    (third,) = ask("schedule", "list", planned, "--key", "table-2")["scheduled"]
    place = f"{third['partition']}/{third['offset']}"

    done = ask("schedule", "cancel", planned, "m-0", place, "--yes")
    unknown = call("schedule", "cancel", planned, "m-1", "never", "--yes")

    assert [each["outcome"] for each in done["outcomes"]] == ["cancelled", "cancelled"]
    assert unknown.exit_code == 1
    assert [line.split() for line in unknown.stdout.splitlines()[1:]] == [
        ["m-1", "cancelled", "1"], ["never", "unknown", "0"],
    ]  # fmt: skip
    assert ids(ask("schedule", "list", planned)) == ["m-3", "m-4"]


def test_a_cancel_again_is_no_failure_but_moving_what_was_cancelled_is(call, ask, planned):
    ask("schedule", "cancel", planned, "m-0", "--yes")

    again = ask("schedule", "cancel", planned, "m-0", "--yes")
    moved = call("schedule", "move", planned, "m-0", "--to", "+1h")

    assert again["outcomes"] == [{"id": "m-0", "outcome": "cancelled", "reached": 0}]
    assert moved.exit_code == 1
    assert moved.stdout.splitlines()[1].split() == ["m-0", "cancelled", "0"]


def test_cancelling_needs_consent(call, ask, planned):
    result = call("schedule", "cancel", planned, "m-0")

    assert result.exit_code == 2
    assert f"Cancel 1 message of {planned}? Nobody is here to ask" in result.stderr
    assert ask("schedule", "count", planned)["total"] == 5


def test_messages_are_moved(ask, planned):
    done = ask("schedule", "move", planned, "m-4", "--to", "+1s")

    assert [each["outcome"] for each in done["outcomes"]] == ["moved"]
    assert ids(ask("schedule", "list", planned))[0] in ("m-4", "m-0")


def test_many_are_cancelled_at_once(call, ask, planned):
    counted = ask("schedule", "cancel-where", planned, "--key-prefix", "order-", "--dry-run")
    refused = call("schedule", "cancel-where", planned, "--key-prefix", "order-")
    done = call("schedule", "cancel-where", planned, "--key-prefix", "order-", "--yes")

    assert (counted["matched"], counted["cancelled"]) == (2, 0)
    assert f"Cancel 2 messages of {planned}?" in refused.stderr
    assert done.stdout == "2 messages cancelled.\n"
    assert ids(ask("schedule", "list", planned)) == ["m-0", "m-2", "m-4"]
    assert ask("schedule", "cancel-where", planned, "--all", "--yes")["cancelled"] == 3


@pytest.mark.parametrize("options", [[], ["--all", "--key", "k"]])
def test_cancelling_many_needs_to_know_which(call, topic, options):
    result = call("schedule", "cancel-where", topic, *options, "--yes")

    assert result.exit_code == 2
    assert "say which, as in --key-prefix order-, or --all of the topic" in result.stderr


def test_a_message_repeats_until_it_is_ended(call, ask, topic):
    name = f"daily-{topic[-8:]}"
    made = ask("schedule", "repeat", name, topic, "wake up", "--every", "90s")
    (found,) = ask("schedule", "repeats", topic)["recurrences"]
    said = call("schedule", "repeats", topic)

    assert found == made
    assert (made["name"], made["topic"], made["every_ms"]) == (name, topic, 90_000)
    assert "every 1 min 30 s" in said.stdout
    assert call("schedule", "unrepeat", name).exit_code == 2
    assert call("schedule", "unrepeat", name, "--yes").stdout == f"Ended {name}.\n"
    assert ask("schedule", "repeats", topic) == {"recurrences": []}
    again = call("schedule", "unrepeat", name, "--yes")
    assert again.stderr == f"error: there is no recurrence '{name}'\n"


def test_what_repeats_is_paused_and_resumed(call, ask, topic):
    name = f"daily-{topic[-8:]}"
    made = ask("schedule", "repeat", name, topic, "wake up", "--cron", "0 9 * * *")

    paused = ask("schedule", "pause", name)
    assert paused == {**made, "next_ms": None, "is_paused": True}
    assert ask("schedule", "repeats", topic)["recurrences"] == [paused]
    assert "paused" in call("schedule", "repeats", topic).stdout
    assert f"schedule resume {name}" in call("schedule", "pause", name).stdout
    assert ask("schedule", "list", topic)["total"] == 0
    assert ask("schedule", "resume", name) == made
    assert ask("schedule", "list", topic)["total"] == 1
    missing = call("schedule", "pause", "none")
    assert missing.stderr == "error: there is no recurrence 'none'\n"


def test_who_makes_a_topic_by_repeating_is_told(call, topic):
    mistyped = f"{topic}-mistyped"
    wanted = ("schedule", "repeat", f"daily-{topic[-8:]}", mistyped, "up", "--every", "1h")

    assert call(*wanted).stderr == f"topic {mistyped} was made (1 partition)\n"
    assert call(*wanted).stderr == ""
    assert call("publish", mistyped, "x").stderr == ""


def test_a_rule_in_words_is_meant_where_it_was_typed(ask, topic, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    name = f"words-{topic[-8:]}"
    rule = ("schedule", "repeat", name, topic, "up", "--at", "every monday 9:00")

    here, there = ask(*rule), ask(*rule, "--zone", "Europe/Berlin")

    assert (here["cron"], here["zone"]) == ("0 9 * * MON", "Asia/Tokyo")
    assert (there["cron"], there["zone"]) == ("0 9 * * MON", "Europe/Berlin")


def test_a_single_time_is_no_rule(call, topic):
    result = call("schedule", "repeat", "once", topic, "up", "--at", "tomorrow 9:00")

    assert result.exit_code == 2
    assert "is a single time; what repeats needs a rule: 'every 90s'" in result.stderr


def test_a_terminal_shows_bars_in_colour(node, planned):
    seen = at_terminal("-m", "waterclock", "schedule", "list", planned, "-a", node.address)

    assert seen.exit_code == 0
    assert f"\x1b[36m{'█' * 32}\x1b[0m 2" in seen.screen
