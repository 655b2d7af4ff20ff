"""The demo runs as a stranger runs it, keeps its guarantees, and says so if it does not."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from demos.node import __main__ as program
from demos.node import run as steps_run
from demos.node.damage import damage
from demos.node.steps import (
    Crashed,
    Damaged,
    DeadLetterRow,
    FailedOver,
    Fired,
    Pending,
    Redriven,
    Replayed,
    Retried,
    Scheduled,
    Started,
    Steps,
    Stopped,
)
from tests.cluster.coordinator.etcd_servers import programs
from waterclock.log.recovery import Damage
from waterclock.model.ids import Offset
from waterclock.model.message import Message
from waterclock.storage.local_log import open_log

CRASHED = Crashed(
    acknowledged=100, acknowledged_before=60, scheduled=20, delivered=100, again=7, early=0,
    refused=0, silence_ms=1_500.0, ready_ms=900.0,
)  # fmt: skip
KEPT = Steps(
    Started("127.0.0.1:9000", "http://127.0.0.1:8080", 900.0),
    Scheduled(
        messages=10, publish_ms=4.0, cancelled=2, moved=1, scheduled=8, listed=8,
        soonest=[Pending(1_700_000_000_000, "guest-1", "tea-1")], per_hour=[5, 2, 1],
    ),
    Fired(
        expected=5, came=5, early=0, cancelled_came=0, late_ms={"p50": 51.0, "max": 99.0},
        late_counts=[("0-100 ms", 5)], tick_ms=100,
    ),
    Retried(
        messages=10, done_at_once=7, done_later=2, dead=1, failing=1, attempts=3,
        wait_ms=[210.0, 405.0], delay_ms=200,
    ),
    Redriven(
        [DeadLetterRow("0/0", "account-1", "pay 1.00", "nacked", 3)], redriven=1, done=1, left=0
    ),
    CRASHED,
    Replayed(
        expected=100, found=100, stored_twice=0, broken_off_at=50, again=3, seconds=0.1
    ),
    Stopped(exit_code=0, stop_ms=30.0),
    Damaged("copy", "file", 1, [Damage(0, 1, Offset(0), Offset(1), "rot")], True, 90, 10, 0, True),
    FailedOver("node-1", "node-2", 2, CRASHED),
)  # fmt: skip


@pytest.mark.etcd
def test_the_demo_runs_and_loses_nothing(tmp_path):
    etcd = Path(programs().find("etcd")).parent
    run = subprocess.run(
        [sys.executable, "-m", "demos.node", "--json", "--data", tmp_path / "new" / "demo"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:{etcd}"},
    )  # fmt: skip

    assert (run.returncode, run.stderr) == (0, "")
    found = json.loads(run.stdout)
    assert (found["ok"], found["broken"], found["lost"]) == (True, [], 0)
    fired, crashed, replayed = found["fired"], found["crashed"], found["replayed"]
    assert fired["came"] == fired["expected"] > 0
    assert (fired["early"], fired["cancelled_came"]) == (0, 0)
    assert found["retried"]["attempts"] == 3
    assert found["redriven"]["done"] == found["retried"]["dead"] > 0
    assert crashed["delivered"] == crashed["acknowledged"] == replayed["found"]
    assert 0 < crashed["acknowledged_before"] < crashed["acknowledged"]
    assert replayed["stored_twice"] == 0
    assert found["stopped"]["exit_code"] == 0
    orders = found["failed_over"]["orders"]
    assert orders["delivered"] == orders["acknowledged"] > orders["acknowledged_before"] > 0
    assert (found["damaged"]["is_found"], found["damaged"]["wrong"]) == (True, 0)


@pytest.fixture
def demo():
    """Return a function that runs the demo with these options."""

    def run(*args):
        return CliRunner().invoke(program.app, [str(arg) for arg in args])

    return run


@pytest.fixture
def outcome(monkeypatch):
    """Return a function that sets what came of the steps, without running them."""

    def plan(steps):
        async def run(folder, on_step):
            for name in Steps.__slots__:
                on_step(getattr(steps, name))
            return steps

        monkeypatch.setattr(program, "run", run)

    return plan


def test_the_demo_prints_its_steps_in_plain_text_and_ends_with_what_to_type(
    demo, outcome, tmp_path
):
    outcome(KEPT)

    result = demo("--data", tmp_path / "demo")

    assert result.exit_code == 0
    numbers = re.findall(r"^(\d+)  ", result.stdout, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 11)]
    assert "\x1b" not in result.output
    assert max(map(len, result.stdout.splitlines()[2:60])) <= 110
    assert "0 lost, 0 early" in result.stdout
    assert "Every guarantee was kept" in result.stdout
    assert f"up --data {tmp_path}/demo/node" in result.stdout


def test_a_lost_message_fails_the_demo(demo, outcome, tmp_path):
    outcome(replace(KEPT, crashed=replace(KEPT.crashed, delivered=99)))

    shown = demo("--data", tmp_path / "one")
    found = demo("--json", "--data", tmp_path / "two")

    assert shown.exit_code == found.exit_code == 1
    assert "NOT KEPT: an acknowledged message was lost" in shown.stdout
    assert json.loads(found.stdout)["lost"] == 1


def test_without_an_etcd_the_demo_says_what_is_missing(demo, outcome, tmp_path):
    outcome(replace(KEPT, failed_over=FailedOver(missing="there is no etcd")))

    result = demo("--data", tmp_path / "demo")

    assert result.exit_code == 0
    assert "Left out: there is no etcd." in result.stdout


@pytest.mark.parametrize(
    ("step", "lie", "broken"),
    [
        ("scheduled", {"scheduled": 7}, "missing from the schedule"),
        ("scheduled", {"listed": 7}, "missing from the schedule"),
        ("fired", {"came": 4}, "a scheduled message did not come"),
        ("fired", {"early": 1}, "a message came early"),
        ("fired", {"cancelled_came": 1}, "a cancelled message came"),
        ("retried", {"done_later": 1}, "a failing message was lost"),
        ("retried", {"dead": 0, "done_later": 3}, "is no dead letter"),
        ("retried", {"wait_ms": [199.0, 405.0]}, "tried again too soon"),
        ("retried", {"wait_ms": [210.0, 399.0]}, "tried again too soon"),
        ("redriven", {"done": 0}, "a redriven message did not come"),
        ("redriven", {"left": 1}, "is still a dead letter"),
        ("crashed", {"delivered": 99}, "an acknowledged message was lost"),
        ("crashed", {"early": 1}, "came early after the kill"),
        ("crashed", {"refused": 50}, "a publish failed for good"),
        ("replayed", {"found": 99}, "a replay left a message out"),
        ("replayed", {"stored_twice": 1}, "a message was stored twice"),
        ("stopped", {"exit_code": 1}, "did not stop well"),
        ("damaged", {"is_found": False}, "damage was not found"),
        ("damaged", {"wrong": 1}, "a wrong message was served"),
        ("failed_over", {"successor": "node-1"}, "nobody leads in the stead"),
        ("failed_over", {"orders": replace(CRASHED, delivered=99)}, "message was lost"),
        ("damaged", {"is_unchanged": False}, "bytes were changed around damage"),
    ],
)
def test_every_lie_is_noticed(step, lie, broken):
    """Each number that a broken node would give is named as a broken guarantee."""
    lying = replace(KEPT, **{step: replace(getattr(KEPT, step), **lie)})

    (found,) = lying.broken()

    assert KEPT.broken() == []
    assert broken in found


def test_a_folder_with_something_in_it_is_refused(demo, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")

    result = demo("--data", tmp_path)

    assert result.exit_code == 2
    assert "is not an empty folder" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_made_is_one_line(demo, tmp_path):
    (tmp_path / "file").write_text("x")

    result = demo("--data", tmp_path / "file" / "demo")

    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: cannot make {tmp_path}/file/demo (Not a directory)")


def test_a_node_that_cannot_start_is_one_line(demo, monkeypatch, tmp_path):
    monkeypatch.setattr(steps_run, "SETTINGS", ("log.fsync=sometimes",))

    result = demo("--data", tmp_path)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: the node ended by itself: error: configuration log.")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("value_bytes", [50, 5_000])  # many batches, or one, per index entry
def test_all_but_the_damaged_batch_is_served(tmp_path, value_bytes):
    with open_log(tmp_path / "log") as log:
        for first in range(0, 50, 10):
            log.publish([Message(bytes([n]) * value_bytes) for n in range(first, first + 10)])

    found = damage(tmp_path / "log", tmp_path / "copy")

    assert [(d.start, d.end) for d in found.found] == [(20, 30)]
    assert (found.served, found.refused, found.wrong) == (40, 10, 0)
    assert found.is_found
    assert found.is_unchanged
