"""How nodes on one machine begin and end together, shown with programs that look like nodes."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waterclock.cli.commands.cluster.local import LocalCluster, NodeChild
from waterclock.cli.commands.cluster.plan import LocalNode
from waterclock.model.config import load_config

GOOD = """
import json, os, signal, sys
def say(line): print(line, file=sys.stderr, flush=True)
FIRST
print(json.dumps({"pid": os.getpid(), "http_address": "http://127.0.0.1:9"}), flush=True)
while True: signal.pause()
"""
STUBBORN = GOOD.replace("FIRST", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
BROKEN = GOOD.replace("FIRST", "say('error: there is no room'); sys.exit(2)")
TELLING = GOOD.replace(
    "FIRST",
    "signal.signal(signal.SIGHUP, signal.SIG_IGN);"
    " say(os.environ.get('NOTIFY_SOCKET', 'told nobody'))",
)
NOISY = GOOD.replace("FIRST", "say('INFO something happened')")
RELOADING = GOOD.replace("FIRST", "signal.signal(signal.SIGHUP, lambda *_: say('INFO reloaded'))")
GOOD = GOOD.replace("FIRST", "")

COMMAND = """
import asyncio, sys
from pathlib import Path
from waterclock.cli.commands.cluster import local, ready
from waterclock.cli.commands.cluster.plan import LocalNode
from waterclock.model.config import load_config
from waterclock.model.errors import WaterclockError
ready.FORM_S_MAX = 0
children = [
    local.NodeChild(
        LocalNode(f"node-{number}", Path(), 0, 0, ""), [sys.executable, "-c", program], "cyan"
    )
    for number, program in enumerate(sys.argv[1:], 1)
]
config = load_config(yaml_text="", environ={}, flags={})
try:
    asyncio.run(local.LocalCluster(config, children, None, as_json=True).run())
except WaterclockError as error:
    sys.exit(f"error: {error}")
"""
ENDS_S_MAX = 30
"""What does not end is found by then."""


class Begun:
    """A command that runs programs, all of which are ready."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        shown: dict[str, Any] = json.loads(process.stdout.readline())
        self.pids: list[int] = [node["pid"] for node in shown["nodes"]]
        # A number that is free again may be another's; this stays that of the process.
        self._ends = [os.pidfd_open(pid) for pid in self.pids]

    def line(self) -> str:
        """Return the next line of its log."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def wait_until_all_have_ended(self) -> None:
        for each in self._ends:
            found, _, _ = select.select([each], [], [], ENDS_S_MAX)
            assert found, "it outlives the command"

    def close(self) -> None:
        for each in self._ends:
            os.close(each)


@contextmanager
def begun(*programs: str) -> Iterator[Begun]:
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *programs],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            found = Begun(process)
            yield found
            found.close()
        finally:
            process.kill()


def test_the_first_signal_asks_all_to_stop_and_the_command_ends_when_they_have():
    with begun(GOOD, GOOD) as it:
        it.process.send_signal(signal.SIGTERM)

        assert it.process.wait() == 0
        it.wait_until_all_have_ended()


def test_the_second_signal_ends_all_at_once():
    with begun(STUBBORN, GOOD) as it:
        it.process.send_signal(signal.SIGINT)
        it.process.send_signal(signal.SIGTERM)

        assert it.process.wait() == 130
        it.wait_until_all_have_ended()


def test_a_node_that_is_killed_is_told_in_one_line_and_the_others_go_on():
    with begun(GOOD, GOOD, GOOD) as it:
        os.kill(it.pids[1], signal.SIGKILL)
        assert it.line() == "node-2 was killed (SIGKILL); node-1, node-3 go on\n"

        os.kill(it.pids[0], signal.SIGKILL)
        assert it.line() == "node-1 was killed (SIGKILL); node-3 goes on\n"
        it.process.send_signal(signal.SIGTERM)
        assert it.process.wait() == 0


def test_when_the_last_node_has_ended_the_command_fails():
    with begun(GOOD) as it:
        os.kill(it.pids[0], signal.SIGKILL)

        assert it.line() == "node-1 was killed (SIGKILL)\n"
        assert it.line() == "error: no node is left\n"
        assert it.process.wait() == 1


async def test_a_node_that_is_being_started_when_all_are_to_stop_stops_too():
    class Late(NodeChild):
        async def start(self, words: Sequence[str], **given: Any) -> Process:
            cluster._stop()  # no node is there yet to be told
            return await super().start(words, **given)

    child = Late(LocalNode("node-1", Path(), 0, 0, ""), [sys.executable, "-c", GOOD], "")
    config = load_config(yaml_text="", environ={}, flags={})
    cluster = LocalCluster(config, [child], None, as_json=True)
    await cluster.run()

    assert child.end_text() == "was killed (SIGTERM)"


def test_no_node_outlives_a_command_that_is_killed():
    with begun(GOOD, GOOD) as it:
        it.process.kill()

        it.wait_until_all_have_ended()


def test_sighup_has_every_node_read_its_settings_again():
    with begun(RELOADING, RELOADING) as it:
        it.process.send_signal(signal.SIGHUP)

        assert [it.line(), it.line()] == ["INFO reloaded\n"] * 2


def test_a_node_that_cannot_start_ends_all_and_says_why_in_one_line():
    run = subprocess.run(
        [sys.executable, "-c", COMMAND, GOOD, BROKEN, GOOD],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (run.stdout, run.stderr) == ("", "error: node-2 did not start: there is no room\n")


def test_what_nodes_log_is_passed_on():
    with begun(NOISY) as it:
        assert it.line() == "INFO something happened\n"


def test_its_supervisor_hears_of_all_nodes_at_once_and_nothing_from_any_of_them(
    tmp_path, monkeypatch
):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(ENDS_S_MAX)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with begun(TELLING, TELLING) as it:
            assert [it.line(), it.line()] == ["told nobody\n"] * 2
            heard = [supervisor.recv(100)]
            it.process.send_signal(signal.SIGHUP)
            heard += [supervisor.recv(100).split()[0], supervisor.recv(100)]
            it.process.send_signal(signal.SIGTERM)
            heard.append(supervisor.recv(100))
            it.process.wait()

    assert heard == [b"READY=1", b"RELOADING=1", b"READY=1", b"STOPPING=1"]
