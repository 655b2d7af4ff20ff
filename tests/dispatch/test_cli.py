"""Dispatchers and workers as anyone starts them, and the demo, on a real Redis."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from benchmarks.peers.server import free_port
from tests.dispatch.programs import wait
from tests.dispatch.redis_servers import programs
from tests.kit.network import wired

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM_S_MAX = 120
PROGRAM = (sys.executable, "-m", "waterclock")
DEMO = (sys.executable, "-m", "demos.dispatch")


@contextmanager
def started(
    *args: object, cwd: Path | None = None, stderr: int | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command until the end of the block."""
    with subprocess.Popen(
        [*PROGRAM, *map(str, args)], cwd=cwd, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Return the next line it prints."""
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def shown_until(stream: IO[str] | None, text: str) -> str:
    """Return what a process shows, up to the line that has a text in it."""
    assert stream is not None
    shown = ""
    for line in stream:
        shown += line
        if text in line:
            return shown
    raise AssertionError(f"it ended without {text!r}: {shown}")


def environ_with_redis() -> dict[str, str]:
    """Return an environment in which redis-server is on the PATH."""
    its = programs()
    folder = str(Path(its.find("redis-server")).parent)
    environ = its.environ()
    return {**environ, "PATH": os.pathsep.join([folder, environ["PATH"]])}


def test_a_message_goes_through_a_dispatcher_and_a_worker_with_a_handler(server, look, name):
    where = ["--redis", server.address, "--prefix", name, "--output", f"{name}:out", "--json"]
    place = ["--source", f"{name}:in", "--host", "127.0.0.1", "--port", "0", "--figures", "0.1"]
    for celsius in (10, 100):
        reading = {"device": f"sensor-{celsius}", "celsius": celsius}
        look.xadd(f"{name}:in", {"data": json.dumps(reading)})
    look.xadd(f"{name}:in", {"data": '{"kind": "ping"}'})
    look.xadd(f"{name}:in", {"data": "{}"})

    handler = ["--handler", "dispatch_handler:handle", "--figures", "0.1"]
    with (
        started("dispatch", *where, *place) as dispatcher,
        started("worker", *where, *handler, cwd=EXAMPLES) as worker,
    ):
        ready = said(dispatcher)
        assert (ready["source"], ready["output"]) == (f"{name}:in", f"{name}:out")
        assert ready["port"] > 0
        assert said(worker)["handler"] == "dispatch_handler:handle"
        wait(lambda: said(dispatcher)["acked"] == 3, what="all acknowledged")
        wait(lambda: look.xlen(f"{{{name}:in}}:dead") == 1, what="the dead letter")
        figures = said(dispatcher)
        assert (figures["workers"], figures["pending"], figures["dead_lettered"]) == (1, 0, 1)
        assert figures["epoch"] > 0
        wait(lambda: said(worker)["skipped"] == 1, what="the skipped ping")
        for process in (worker, dispatcher):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PROGRAM_S_MAX)
            assert process.returncode == 0

    written = sorted(fields[b"fahrenheit"] for _, fields in look.xrange(f"{name}:out"))
    assert written == [b"212.0", b"50.0"]
    ((_, dead),) = look.xrange(f"{{{name}:in}}:dead")
    assert b"no reading in it" in dead[b"reason"]


def test_people_are_told_who_leads_and_what_to_type(server, name):
    args = ["dispatch", "--redis", server.address, "--prefix", name, "--port", "0"]
    with started(*args, "--source", f"{name}:in") as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        shown = ""
        while "Leads, epoch" not in shown:
            shown += next(lines)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=PROGRAM_S_MAX)

    assert "is ready" in shown
    assert "worker --handler my_module:handle" in shown
    assert "Stopped" in rest
    assert process.returncode == 0


def test_a_dispatcher_without_redis_says_what_it_waits_for_and_is_ready_only_then(server, name):
    port = free_port()
    args = ["dispatch", "--redis", f"127.0.0.1:{port}", "--prefix", name, "--port", "0"]
    with started(*args, "--source", f"{name}:in", stderr=subprocess.PIPE) as process:
        said = shown_until(process.stderr, "waiting for the lease in Redis")
        with wired(server.port, own_port=port):
            shown = shown_until(process.stdout, "Leads, epoch")
            said += shown_until(process.stderr, "the lease in Redis is there, after ")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PROGRAM_S_MAX)

    assert f"Redis at 127.0.0.1:{port} does not answer: connection refused" in said
    assert shown.startswith("Dispatcher ")
    assert " is ready: " in shown


def test_a_worker_without_a_leader_says_so_and_a_failing_handler_is_told_at_once(
    server, look, name
):
    where = ["--redis", server.address, "--prefix", name]
    handler = ["--handler", "dispatch_handler:handle", "--output", f"{name}:out"]
    with started("worker", *where, *handler, cwd=EXAMPLES, stderr=subprocess.PIPE) as worker:
        said = shown_until(worker.stderr, "waiting for a dispatcher that leads")
        assert f"nobody holds the lock {{{name}}}:lock" in said
        look.xadd(f"{name}:in", {"data": "{}"})
        place = ["--source", f"{name}:in", "--host", "127.0.0.1", "--port", "0", "--json"]
        with started("dispatch", *where, *place):
            assert shown_until(worker.stdout, "\n").startswith("Worker is ready: dispatch_handler")
            said = shown_until(worker.stderr, "PermanentError: no reading in it\n")
            if "a dispatcher that leads is there, after " not in said:
                shown_until(worker.stderr, "a dispatcher that leads is there, after ")
            worker.send_signal(signal.SIGINT)
            worker.communicate(timeout=PROGRAM_S_MAX)

    assert "handler_failed uuid=" in said
    assert "error=PermanentError: no reading in it, dispatch_handler.py:" in said
    assert "Traceback (most recent call last):" in said


@pytest.mark.parametrize("source_kind", ["stream", "pubsub"])
def test_the_demo_loses_nothing_and_writes_nothing_twice(server, source_kind):
    """A worker dies meanwhile; the Redis is the demo's own."""
    args = [
        "--seconds",
        "3",
        "--rate",
        "600",
        "--workers",
        "2",
        "--source-kind",
        source_kind,
        "--json",
    ]
    run = subprocess.run(
        [*DEMO, *args, "--kill", "worker", "--every", "2.5"],
        env=environ_with_redis(), capture_output=True, text=True, check=False,
        timeout=PROGRAM_S_MAX,
    )  # fmt: skip

    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    found = json.loads(run.stdout)
    assert (found["ok"], found["lost"], found["twice"]) == (True, 0, 0)
    assert found["sent"] == found["written"] + found["dead"] > 0
    assert found["killed"] == {"worker": 1}


def test_the_demo_survives_its_leader_and_leaves_somebody_elses_redis_as_it_was(server, name, look):
    look.set(name, "somebody else's")
    before = set(look.keys())
    args = ["--seconds", "3", "--rate", "200", "--workers", "2", "--redis", server.address]
    run = subprocess.run(
        [*DEMO, *args, "--kill", "leader", "--every", "3"],
        capture_output=True, text=True, check=False, timeout=PROGRAM_S_MAX,
    )  # fmt: skip

    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert "kill -9 of a leader" in run.stdout
    assert "Nothing lost, nothing twice; 1 kill" in run.stdout
    # Keys of other tests may have expired meanwhile.
    assert set(look.keys()) <= before
    assert look.get(name) == b"somebody else's"


def test_a_demo_that_is_stopped_leaves_no_process_behind(server, tmp_path):
    args = ["--json", "--seconds", "100", "--redis", server.address]
    process = subprocess.Popen([*DEMO, *args], env={**os.environ, "TMPDIR": str(tmp_path)})
    wait(lambda: len(processes_in(tmp_path)) == 6, what="all processes")

    process.terminate()

    assert process.wait(PROGRAM_S_MAX) == 130
    assert processes_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_demo_without_its_redis_ends_with_one_line():
    run = subprocess.run(
        [*DEMO, "--redis", "127.0.0.1:1"], capture_output=True, text=True, check=False,
        timeout=PROGRAM_S_MAX,
    )  # fmt: skip

    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: ")
    assert "127.0.0.1:1" in line


def processes_in(folder: Path) -> list[str]:
    """Return the ids of processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(process / "cwd").removesuffix(" (deleted)")).is_relative_to(folder):
                found.append(process.name)
    return found


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["dispatch", "--port", "TAKEN"], "already in use"),
        (["dispatch", "--redis", "http://localhost"], "is no address of a Redis server"),
        (["worker", "--redis", "redis://localhost:port"], "is no address of a Redis server"),
    ],
)
def test_what_keeps_it_from_running_is_told_in_one_line(server, args, said):
    args = [str(server.port) if word == "TAKEN" else word for word in args]
    run = subprocess.run(
        [*PROGRAM, *args, "--json"], capture_output=True, text=True, check=False,
        timeout=PROGRAM_S_MAX,
    )  # fmt: skip

    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
