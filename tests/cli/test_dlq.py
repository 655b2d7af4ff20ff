"""`dlq` shows dead letters, publishes them again and lets them go."""

import pytest

LOOKS_MAX = 1_000


@pytest.fixture
def failed(call, ask, topic):
    """Publish three messages and reject them; return the topic."""
    for number in range(3):
        call("publish", topic, f"value {number}", "--key", f"k-{number}", "-H", "trace=1")
    ask("subscribe", topic, "-g", "g", "-n", 3, "--reject")
    for _ in range(LOOKS_MAX):  # they are written aside
        if ask("dlq", "list", topic)["total"] == 3:
            return topic
    pytest.fail("the rejected messages are no dead letters")


def test_dead_letters_are_listed_with_their_reason(call, ask, failed):
    found = ask("dlq", "list", failed, "--limit", 2)
    said = call("dlq", "list", failed, "--limit", 2)

    assert (found["total"], len(found["dead_letters"])) == (3, 2)
    first = found["dead_letters"][0]
    assert (first["value"], first["key"], first["group"]) == ("value 0", "k-0", "g")
    assert (first["origin_partition"], first["origin_offset"], first["attempts"]) == (0, 0, 1)
    assert "value 0" in said.stdout
    assert "… and 1 more: --limit shows more" in said.stdout


def test_topics_with_dead_letters_are_counted(call, ask, failed):
    assert {"topic": failed, "total": 3} in ask("dlq")["topics"]
    assert failed in call("dlq").stdout


def test_a_dead_letter_is_shown_whole(call, ask, failed):
    said = call("dlq", "show", failed, "0/1").stdout
    found = ask("dlq", "show", failed, "0/1")

    assert "value 1" in said
    assert "header trace" in said
    assert found["value"] == "value 1"


def test_some_are_redriven_and_come_again(call, ask, failed):
    done = call("dlq", "redrive", failed, "0/0", "0/2")
    came = ask("subscribe", failed, "-g", "g", "-n", 2)

    assert done.stdout == f"2 dead letters published again to {failed}.\n"
    assert [row["value"] for row in came] == ["value 0", "value 2"]
    assert ask("dlq", "list", failed)["total"] == 1


def test_one_is_edited_as_it_is_redriven(call, ask, failed):
    call("dlq", "redrive", failed, "0/1", "--value", "mended", "-H", "by=ada")
    came = ask("subscribe", failed, "-g", "g", "-n", 1)

    assert (came["value"], came["key"]) == ("mended", "k-1")
    assert came["headers"] == {"by": "ada", "wc-redriven": "1"}
    assert "one dead letter" in call("dlq", "redrive", failed, "--all", "--value", "x").stderr


def test_all_are_redriven(ask, failed):
    assert ask("dlq", "redrive", failed, "--all")["redriven"] == 3
    assert ask("dlq", "list", failed)["total"] == 0


def test_purging_needs_consent(call, ask, failed):
    refused = call("dlq", "purge", failed, "--all")

    assert refused.exit_code == 2
    assert f"Purge 3 dead letters of {failed}, for good?" in refused.stderr
    assert ask("dlq", "purge", failed, "0/0", "--yes")["purged"] == 1
    assert call("dlq", "purge", failed, "--all", "--yes").stdout == (
        f"2 dead letters of {failed} purged.\n"
    )
    assert call("dlq", "list", failed).stdout == f"{failed} has no dead letters.\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["redrive"], "say which: positions as `dlq list` shows them, or --all"),
        (["purge", "0/1", "--all"], "say which: positions as `dlq list` shows them, or --all"),
        (["show", "0/7"], "there is no dead letter '0/7 of "),
        (["show", "seven"], "write partition/offset, as in 0/12"),
    ],
)
def test_a_mistake_is_told_in_one_line(call, failed, args, line):
    command, *rest = args

    result = call("dlq", command, failed, *rest)

    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
