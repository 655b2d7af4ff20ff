"""`receive` prints what comes, once or for ever, and says how to go on."""

import json
import re
import signal
import subprocess
import sys

import pytest

from tests.cli.terminals import at_terminal
from tests.kit.timed_lines import untimed
from waterclock.cli.output.terminal import time_text


def following(node, stream, *options):
    command = [sys.executable, "-m", "waterclock", "receive", stream, "--follow", *options]
    return subprocess.Popen(
        [*command, "--address", node.address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_next_message_is_printed_for_people_pipes_or_machines(call, ask, topic):
    for message in ("hello", '{"n": 1}', "tab\there", '"quoted"'):
        call("send", topic, message)

    sent_ms = ask("receive", topic, "--resume", "earliest")["sent_ms"]
    assert call("receive", topic).stdout == f"1  {time_text(sent_ms)}  hello\n"
    assert call("receive", topic, "--raw").stdout == '{"n": 1}\n'
    found = ask("receive", topic)
    assert (found["stream"], found["position"], found["message"]) == (topic, 3, "tab\there")
    assert found["missed"] == 0
    assert found["sent_ms"] > 0
    assert found["resume_token"]
    assert untimed(call("receive", topic).stdout) == "4  quoted\n"


def test_nothing_in_time_ends_with_one(call, topic):
    result = call("receive", topic, "--timeout", "1ms")

    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")


def test_consumers_and_tokens_say_where_to_go_on(call, ask, topic):
    for number in range(4):
        call("send", topic, number, "--store")

    first, second = (ask("receive", topic, "--consumer", name, "-n", 3) for name in ("ada", "bob"))

    assert [each["message"] for each in first] == [0, 1, 2]
    assert first == second
    assert ask("receive", topic, "--resume", first[-1]["resume_token"])["message"] == 3
    assert ask("receive", topic, "--resume", "earliest")["message"] == 0


def test_following_prints_all_and_what_comes_later(node, call, topic):
    call("send", topic, "one")
    with following(node, topic, "--limit", "2") as process:
        assert process.stdout is not None
        assert untimed(process.stdout.readline()) == "1  one\n"
        call("send", topic, "two")
        out, errors = process.communicate()

    assert (process.returncode, untimed(out), errors) == (0, "2  two\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well(node, call, topic, number):
    call("send", topic, "hello")
    with following(node, topic, "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["message"] == "hello"
        process.send_signal(number)
        rest = process.communicate()

    assert (process.returncode, rest) == (0, ("", ""))


def test_a_person_who_ends_it_is_told_how_to_go_on(node, call, ask, topic):
    call("send", topic, "one", "--store")

    seen = at_terminal(
        *("-m", "waterclock", "receive", topic, "--follow", "-a", node.address),
        awaited="one",
        is_interrupted=True,
    )

    assert seen.exit_code == 0
    assert "Following. Ctrl-C ends it." in seen.screen
    assert "1 message." in seen.screen
    words = re.search(r"To go on after the last: .* receive (\S+) --follow --resume (\w+)",
                      seen.screen.replace("\n", ""))  # fmt: skip
    assert words is not None
    assert words[1] == topic
    call("send", topic, "two", "--store")
    assert ask("receive", topic, "--resume", words[2])["message"] == "two"


def test_a_reader_that_goes_away_ends_it_also_if_nothing_more_comes(node, call, topic):
    call("send", topic, "hello")
    command = f"{sys.executable} -m waterclock receive {topic} --follow -a {node.address}"

    run = subprocess.run(
        f"{command} | head -1", shell=True, capture_output=True, text=True, check=False
    )

    assert (untimed(run.stdout), run.stderr) == ("1  hello\n", "")


def test_what_is_missing_is_told_on_the_side(call, ask, topic):
    call("send", topic, 0, "--size", 2)
    token = ask("receive", topic)["resume_token"]
    for number in range(1, 5):
        call("send", topic, number)

    result = call("receive", topic, "--follow", "-n", 2, "--resume", token)

    assert untimed(result.stdout) == "4  3\n5  4\n"
    assert result.stderr.startswith("2 messages are missing here: ")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--follow", "--timeout", "5s"], "--follow waits for ever"),
        (["--limit", "1001"], "at most 1000 at once"),
        (["--resume", "forged"], "resumeToken: is not a token"),
        (["--resume", "0f" * 30], "resumeToken: is not a token of this stream"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call, topic, args, line):
    result = call("receive", topic, *args)

    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_named_consumer_goes_on_after_what_was_printed(node, call, topic):
    for number in range(5):
        call("send", topic, number)
    options = ("--follow", "--consumer", "ada", "-n", 2)

    assert untimed(call("receive", topic, *options).stdout) == "1  0\n2  1\n"
    with following(node, topic, "--consumer", "ada") as process:
        assert process.stdout is not None
        assert untimed(process.stdout.readline()) == "3  2\n"
        process.send_signal(signal.SIGINT)
        process.communicate()
    call("send", topic, "last")
    assert untimed(call("receive", topic, *options[:-1], 1).stdout) == "6  last\n"


@pytest.mark.parametrize("lines", [1, 2])
def test_a_reader_that_has_enough_is_no_failure(node, call, topic, lines):
    call("send", topic, "hello", "--size", 200)
    command = f"{sys.executable} -m waterclock receive {topic} --follow -a {node.address}"
    feeding = f"yes {'x' * 4_000} | head -200 | {sys.executable} -m waterclock send {topic} -"
    subprocess.run(f"{feeding} -a {node.address}", shell=True, check=True, capture_output=True)

    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -{lines} >/dev/null"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (run.returncode, run.stderr) == (0, "")


def test_a_full_disk_is_told_in_one_line(node, call, topic):
    call("send", topic, "hello")
    for command in (f"receive {topic}", "streams list", "streams list --json"):
        run = subprocess.run(
            f"{sys.executable} -m waterclock {command} -a {node.address} >/dev/full",
            shell=True, capture_output=True, text=True, check=False,
        )  # fmt: skip

        assert (run.returncode, run.stderr) == (2, "error: No space left on device\n")
