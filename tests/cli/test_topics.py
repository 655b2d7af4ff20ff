"""`topics` lists, makes, changes and deletes, and asks before it deletes."""

import pytest

from tests.cli.terminals import at_terminal


def test_publishing_makes_a_topic_that_is_listed(call, ask, topic):
    call("publish", topic, "hello")

    for listing in (["topics"], ["topics", "list"]):
        found = {each["topic"]: each for each in ask(*listing)["topics"]}[topic]
        assert (len(found["partitions"]), found["partitions"][0]["end_offset"]) == (1, 1)


def test_a_topic_is_made_as_told_and_shown(call, ask, topic):
    made = ask(
        "topics", "create", topic, "--partitions", 3, "--retention", "7d",
        "--retention-bytes", "1GiB", "--wait-for-groups", "--compacted", "--retries", 5,
        "--ack-timeout", "10s", "--replication-factor", 3,
    )  # fmt: skip
    said = call("topics", "show", topic)

    assert made == ask("topics", "show", topic)
    assert {key: made[key] for key in made if key not in ("topic", "partitions")} == {
        "retention_ms": 604_800_000, "retention_bytes": 1 << 30,
        "retention_wait_for_groups": True, "is_compacted": True,
        "retries_max": 5, "ack_timeout_ms": 10_000, "replication_factor": 3,
    }  # fmt: skip
    assert len(made["partitions"]) == 3
    assert said.stdout.splitlines()[0] == (
        f"{topic}: 3 partitions, kept for 7 d and up to 1 GiB a partition,"
        " retention waits for groups, compacted, at most 5 retries, ack within 10 s, 3 replicas"
    )


def test_a_topic_that_exists_is_no_error_if_so_asked(call, topic):
    call("topics", "create", topic)

    again = call("topics", "create", topic)

    assert again.exit_code == 2
    assert again.stderr == f"error: topic '{topic}' exists already\n"
    assert call("topics", "create", topic, "--if-absent").exit_code == 0


def test_settings_change_and_those_not_named_stay(ask, topic):
    ask("topics", "create", topic, "--retries", 5)

    changed = ask("topics", "update", topic, "--partitions", 2)
    fewer = ask("topics", "update", topic, "--replicas", 2)

    assert (len(changed["partitions"]), changed["retries_max"]) == (2, 5)
    assert (fewer["replication_factor"], fewer["retries_max"]) == (2, 5)


def test_a_topic_is_deleted_only_with_consent(call, ask, topic):
    call("publish", topic, "hello")

    refused = call("topics", "delete", topic)
    done = call("topics", "delete", topic, "--yes")

    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"error: Delete {topic} with its ")
    assert refused.stderr.endswith("Nobody is here to ask: add --yes to do it\n")
    assert done.stdout == f"Deleted {topic}.\n"
    assert topic not in [each["topic"] for each in ask("topics")["topics"]]


def test_a_person_is_asked_first(node, call, topic):
    call("publish", topic, "hello")

    command = ("-m", "waterclock", "topics", "delete", topic, "--address", node.address)
    declined = at_terminal(*command, typed="n\n", columns=200)
    agreed = at_terminal(*command, typed="y\n", columns=200)

    assert (declined.exit_code, agreed.exit_code) == (1, 0)
    assert "Nothing was changed." in declined.screen
    assert f"Deleted {topic}." in agreed.screen


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["show", "nowhere"], "there is no topic 'nowhere'"),
        (["delete", "nowhere", "--yes"], "there is no topic 'nowhere'"),
        (["update", "nowhere"], "nothing to change: name a setting, as in --partitions 8"),
        (["create", "x", "--retention-bytes", "much"], "--retention-bytes 'much' is not a size"),
        (["create", "x", "--retention", "long"], "is not a time such as 90s or 1h30m"),
        (["create", "a/b"], "only letters, digits"),
    ],
)
def test_a_mistake_is_told_in_one_line(call, args, line):
    result = call("topics", *args)

    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_options_before_the_name_of_the_command_count(waterclock, node, topic):
    waterclock("publish", topic, "x", "--address", node.address)

    result = waterclock("topics", "--address", node.address, "--json", "show", topic)

    assert result.exit_code == 0
    assert result.stdout.startswith('{"topic"')
