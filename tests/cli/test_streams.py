"""`streams` lists, shows, resizes and deletes them."""

from tests.cli.terminals import at_terminal


def test_streams_are_listed_by_name(call, ask, topic):
    call("send", topic, 1)
    call("send", f"{topic}\n\x1b[31m", 1)

    assert {topic, f"{topic}\n\x1b[31m"} <= set(ask("streams")["streams"])
    lines = call("streams", "list").stdout.splitlines()
    assert topic in lines
    assert f"{topic}\\n\\x1b[31m" in lines


def test_one_is_shown_with_its_consumers(call, ask, topic):
    for number in range(3):
        call("send", topic, number)
    call("receive", topic, "--consumer", "ada")

    assert ask("streams", "show", topic) == {
        "stream": topic,
        "size": 100,
        "messages": 3,
        "first_position": 1,
        "last_position": 3,
        "waiting": 0,
        "waiting_senders": 0,
        "consumers": {"ada": 1},
    }
    head, positions, _, columns, row = call("streams", "show", topic).stdout.splitlines()
    assert head == f"{topic}: 3 messages of 100 in memory, 0 waiting"
    assert positions == "positions 1 to 3"
    assert columns.split() == ["consumer", "position", "behind"]
    assert row.split() == ["ada", "1", "2"]


def test_one_is_resized(call, ask, topic):
    for number in range(3):
        call("send", topic, number)

    assert ask("streams", "resize", topic, 2)["messages"] == 2
    assert call("streams", "resize", topic, 7).stdout.startswith(f"{topic}: 2 messages of 7 in")


def test_one_is_deleted_if_somebody_says_so(node, call, ask, topic):
    call("send", topic, 1, "--store")

    unasked = call("streams", "delete", topic)
    declined = at_terminal(
        *("-m", "waterclock", "streams", "delete", topic, "-a", node.address), typed="n\n"
    )
    deleted = call("streams", "delete", topic, "--yes")

    assert unasked.exit_code == 2
    assert "add --yes" in unasked.stderr
    assert declined.exit_code == 1
    assert "with 1 message in memory and all that is stored?" in declined.screen
    assert deleted.stdout == f"Deleted stream {topic}.\n"
    again = call("streams", "delete", topic, "--yes")
    assert (again.exit_code, again.stderr) == (2, f"error: there is no stream '{topic}'\n")
    assert call("receive", topic, "--resume", "earliest", "--timeout", "1ms").exit_code == 1


def test_one_that_is_not_there_is_told(call, topic):
    for words in (["show", topic], ["resize", topic, 5]):
        result = call("streams", *words)
        assert result.exit_code == 2
        assert result.stderr == f"error: there is no stream '{topic}' in memory\n"
