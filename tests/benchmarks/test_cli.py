"""What stands beside a start of ours is left out where it cannot run, with the reason."""

import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from benchmarks import cli
from benchmarks.harness import Report
from benchmarks.peers.cache import Programs
from benchmarks.peers.server import started_together


@pytest.fixture
def report():
    return Report("cli", {})


@contextmanager
def redis_running(folder):
    yield SimpleNamespace(port=1, version="")


def beside(report, tmp_path, monkeypatch, *, script):
    """Start a Redis that is there, and a `redis-cli` that is this script."""
    command = tmp_path / "redis-cli"
    command.write_text(script)
    command.chmod(0o755)
    monkeypatch.setattr("benchmarks.peers.redis.programs", lambda: Programs(tmp_path))
    monkeypatch.setattr("benchmarks.peers.redis.running", redis_running)
    monkeypatch.setenv("BENCH_PEERS", "redis")
    line = cli.CommandLine(report, tmp_path, lambda step: None)
    for number in range(2):
        line.run_beside(number)
    line.add_peers()


def test_a_command_that_lacks_a_library_is_left_out_with_the_reason(report, tmp_path, monkeypatch):
    beside(report, tmp_path, monkeypatch, script="#!/bin/sh\nexit 127\n")

    (note,) = report.notes
    assert note.startswith("Absent: redis, because redis-cli does not run: ")
    assert "127" in note
    assert report.peers == []


def test_a_command_out_of_the_cache_finds_its_libraries_there(report, tmp_path, monkeypatch):
    libraries = tmp_path / "usr" / "lib" / "some-linux-gnu"
    libraries.mkdir(parents=True)
    script = f'#!/bin/sh\ntest "$LD_LIBRARY_PATH" = {libraries}\n'
    beside(report, tmp_path, monkeypatch, script=script)

    assert report.notes == []
    assert [each.case for each in report.peers] == [
        "redis_up_ready_s", "redis_publish_s", "redis_publish_cpu_s",
    ]  # fmt: skip


def test_a_server_of_several_processes_has_ended_once_all_of_them_have(tmp_path):
    # The shell that started it ends at once when it is asked; this one sees to something first.
    slow = f"trap 'sleep 0.3; touch {tmp_path}/seen-to; exit' TERM; touch {tmp_path}/up; read x"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = ["sh", "-c", f"{slow} <>{fifo}"]
    with started_together([command], folder=tmp_path, port=0, is_ready=(tmp_path / "up").exists):
        pass

    assert (tmp_path / "seen-to").exists()
