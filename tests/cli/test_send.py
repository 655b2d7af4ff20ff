"""`send` takes JSON or text, one message or the lines of stdin, and tells what became of it."""

import subprocess
import sys

import pytest

from waterclock.cli.commands.send import value_of


def received(ask, stream, *options):
    found = ask("receive", stream, "--timeout", "5s", *options)
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("5", 5),
        ('"5"', "5"),
        ("true", True),
        ("hello there", "hello there"),
        ("", ""),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("[-1e999]", "[-1e999]"),
        ("{broken", "{broken"),
        ("ü☃", "ü☃"),
    ],
)
def test_what_is_no_json_is_text(typed, value):
    assert value_of(typed) == value
    assert type(value_of(typed)) is type(value)


def test_a_message_is_sent_and_told_of(call, ask, topic):
    said = call("send", topic, "hello", "--id", "m-1", "--size", 5)
    more = ask("send", topic, '{"n": 1}', "--ttl", "1h")

    assert said.stdout == f"{topic} 1: sent, id m-1\n"
    assert (more["stream"], more["position"], more["is_delivered"]) == (topic, 2, False)
    assert more["resume_token"] is None
    assert [each["message"] for each in received(ask, topic, "-n", 9)] == ["hello", {"n": 1}]
    assert ask("streams", "show", topic)["size"] == 5


def test_what_is_stored_says_where_and_is_stored_once(call, ask, topic):
    first = ask("send", topic, "kept", "--store", "--id", "m")
    again = call("send", topic, "kept", "--store", "--id", "m")

    assert (first["position"], first["is_new"]) == (1, True)
    assert first["resume_token"]
    assert again.stdout == f"{topic} 1: stored before, nothing changed, id m\n"


def test_nobody_who_takes_it_is_an_error(call, topic):
    result = call("send", topic, "knock", "--size", 0, "--timeout", "1ms")

    assert result.exit_code == 2
    assert result.stderr == "error: no match within the timeout\n"


def test_lines_of_stdin_are_sent_in_order(node, ask, topic):
    command = [sys.executable, "-m", "waterclock", "send", topic, "-", "-a", node.address]
    run = subprocess.run(
        command, input='one\n{"two": 2}\n3', capture_output=True, text=True, check=True
    )

    assert run.stdout.startswith(f"Sent 3 messages to {topic} in ")
    assert run.stderr == ""
    assert [each["message"] for each in received(ask, topic, "-n", 9)] == ["one", {"two": 2}, 3]


def test_a_failure_in_the_midst_of_lines_says_how_far_it_came(node, ask, topic):
    command = [sys.executable, "-m", "waterclock", "send", topic, "-", "-a", node.address]
    limits = ["--size", "1", "--block", "1ms"]
    run = subprocess.run(
        [*command, *limits], input="one\ntwo\n", capture_output=True, text=True, check=False
    )

    assert run.returncode == 2
    assert run.stderr == "1 line had been sent before this:\nerror: no match within the timeout\n"
    assert [each["message"] for each in received(ask, topic, "-n", 9)] == ["one"]


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["x", "--store", "--size", "5"], "what is stored waits for nobody"),
        (["-", "--id", "m"], "--id is for one message"),
        (["x", "--size", "1000000"], "inMemoryStreamSize exceeds its limit of 10000"),
        (["x", "--ttl", "soon"], "ttl: duration: 'soon' is not a time"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call, topic, args, line):
    result = call("send", topic, *args)

    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
