"""`subscribe` prints what comes, answers as told, and leaves nothing behind."""

import json
import signal
import subprocess
import sys

import pytest

from benchmarks.peers.server import free_port
from tests.cli.nodes import running
from tests.cli.terminals import at_terminal
from tests.kit.timed_lines import untimed
from waterclock.cli.output.terminal import time_text

LOOKS_MAX = 1_000


def test_a_new_group_gets_what_was_there_and_acks_it(call, ask, topic):
    for value in ("one", "two", "three"):
        call("publish", topic, value)

    first = ask("subscribe", topic, "--group", "g", "--count", 2)
    second = ask("subscribe", topic, "--group", "g", "--count", 1)

    assert [row["value"] for row in first] == ["one", "two"]
    assert (second["value"], second["attempt"]) == ("three", 1)
    assert ask("groups", "show", topic, "g")["lag"] == 0


def test_lines_are_for_people_and_raw_values_for_pipes(call, ask, topic):
    call("publish", topic, "hello", "--key", "k")
    call("publish", topic, "late", "--at", "2020-01-01T00:00Z")

    shown = call("subscribe", topic, "--from", "earliest", "-n", 2)
    times = [
        time_text(row["appended_ms"])
        for row in ask("subscribe", topic, "--from", "earliest", "-n", 2)
    ]
    raw = call("subscribe", topic, "--from", "earliest", "-n", 2, "--raw")

    first, second = shown.stdout.splitlines()
    assert first == f"0/0  {times[0]}  k  hello"
    assert second.startswith(f"0/1  {times[1]}  late  (")
    assert second.endswith(" s late)")
    assert raw.stdout == "hello\nlate\n"


def test_watching_leaves_no_group_behind(call, ask, topic):
    call("publish", topic, "hello")

    ask("subscribe", topic, "--from", "earliest", "-n", 1)

    assert ask("groups", "list", topic) == {"groups": []}


def test_looking_without_acking_gives_all_back_uncounted(call, ask, topic):
    call("publish", topic, "hello")

    ask("subscribe", topic, "-g", "g", "-n", 1, "--no-ack")
    again = ask("subscribe", topic, "-g", "g", "-n", 1)

    assert (again["value"], again["attempt"]) == ("hello", 1)


def test_what_is_failed_comes_again_and_then_is_a_dead_letter(call, ask, topic):
    call("publish", topic, "hello")

    attempts = [row["attempt"] for row in ask("subscribe", topic, "-g", "g", "-n", 2, "--nack")]

    assert attempts == [1, 2]
    assert dead_letters(ask, topic) == ["hello"]


def test_what_is_rejected_is_a_dead_letter_at_once(call, ask, topic):
    call("publish", topic, "hello")

    ask("subscribe", topic, "-g", "g", "-n", 1, "--reject")

    assert dead_letters(ask, topic) == ["hello"]


def dead_letters(ask, topic):
    """Return the values of the dead letters, once there are some: the node writes them later."""
    for _ in range(LOOKS_MAX):
        if found := ask("dlq", "list", topic)["dead_letters"]:
            return [letter["value"] for letter in found]
    return []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well(node, call, ask, topic, number):
    call("publish", topic, "hello")
    command = [sys.executable, "-m", "waterclock", "subscribe", topic, "--from", "earliest"]
    with subprocess.Popen(
        [*command, "--address", node.address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert untimed(process.stdout.readline()) == "0/0  hello\n"
        process.send_signal(number)
        rest = process.communicate()

    assert (process.returncode, rest) == (0, ("", ""))
    assert ask("groups", "list", topic) == {"groups": []}


def test_a_reader_that_goes_away_ends_it_also_if_nothing_more_comes(node, call, topic):
    call("publish", topic, "value 0")
    command = f"{sys.executable} -m waterclock subscribe {topic} -g g --address {node.address}"

    run = subprocess.run(
        f"{command} | head -1", shell=True, capture_output=True, text=True, check=False
    )

    assert (untimed(run.stdout), run.stderr) == ("0/0  value 0\n", "")


def test_a_person_is_told_what_happens(node, call, topic):
    call("publish", topic, "hello")

    seen = at_terminal(
        "-m", "waterclock", "subscribe", topic, "-g", "g", "-n", 1, "-a", node.address
    )

    assert seen.exit_code == 0
    assert f"Subscribed to {topic} in group g. Ctrl-C ends it." in seen.screen
    assert "1 message." in seen.screen


def test_what_is_published_once_it_says_so_is_seen(node, call, topic):
    call("publish", topic, "before")

    seen = at_terminal(
        *("-m", "waterclock", "subscribe", topic, "-n", 1, "-a", node.address),
        awaited="Ctrl-C ends it.",
        then=lambda: call("publish", topic, "after"),
    )

    assert seen.exit_code == 0
    assert "after" in seen.screen
    assert "before" not in seen.screen


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--nack", "--reject", "-g", "g"], "choose one of --no-ack, --nack and --reject"),
        (["--nack"], "need the --group for which a message is to fail"),
        (["--from", "soon"], "'soon' is not a time that is read here. Write -1h"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call, topic, args, line):
    result = call("subscribe", topic, *args)

    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_subscriber_says_that_it_waits_for_the_node_and_not_where_json_goes(tmp_path):
    port = free_port()
    at = ["-a", f"127.0.0.1:{port}"]
    program = [sys.executable, "-m", "waterclock"]
    publish = [*program, "publish", "orders", "hello", *at]
    watch = [*program, "subscribe", "orders", "-g", "g", "-n", "2", "--json", *at]
    with running(tmp_path, "--grpc-port", str(port)):
        subprocess.run(publish, check=True, capture_output=True)
        process = subprocess.Popen(watch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
    with process:
        waits = process.stderr.readline()
        with running(tmp_path, "--grpc-port", str(port)):
            ends = next(line for line in process.stderr if not line.startswith("waiting for "))
            subprocess.run(publish, check=True, capture_output=True)
            second = process.stdout.readline()
            process.kill()

    assert waits.startswith(f"waiting for the node at 127.0.0.1:{port}: ")
    assert ends.startswith(f"the node at 127.0.0.1:{port} is there, after ")
    assert [json.loads(line)["value"] for line in (first, second)] == ["hello", "hello"]


def test_a_subscriber_says_that_it_made_the_topic(call, node, topic):
    words = ["subscribe", topic, "--group", "g", "--count", "1", "--address", node.address]
    with subprocess.Popen(
        [sys.executable, "-m", "waterclock", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        published = call("publish", topic, "hello")
        out, _ = process.communicate()

    assert said == f"topic {topic} was made (1 partition)\n"
    assert published.stderr == ""
    assert untimed(out) == "0/0  hello\n"
