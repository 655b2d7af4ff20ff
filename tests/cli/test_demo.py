"""The demo runs as a stranger runs it, keeps its promises, and says so if it does not."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from waterclock.cli import narrator, tour
from waterclock.log.recovery import Damage
from waterclock.model.errors import StorageFailed
from waterclock.model.ids import Offset
from waterclock.model.message import Message
from waterclock.storage.local_log import open_log

KILLED = tour.Crashed(
    acknowledged=50, found=50, unacknowledged=0, earlier=2_000, promises=tour.PROMISES, reopen_ms=1
)


@pytest.fixture
def quick(monkeypatch):
    """Make the demo short, and its crash a tale."""
    monkeypatch.setattr(tour, "BATCHES", 2)
    monkeypatch.setattr(tour, "crash", lambda folder: KILLED)


def test_the_demo_runs_and_loses_nothing(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "waterclock", "demo", "--json", "--data", tmp_path / "new" / "demo"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (run.returncode, run.stderr) == (0, "")
    found = json.loads(run.stdout)
    assert (found["ok"], found["broken"], found["lost"]) == (True, [], 0)
    assert found["crashed"]["acknowledged"] == found["crashed"]["found"] > 0
    assert found["published"]["messages"] == found["crashed"]["earlier"]
    assert found["repeated"]["written"] == 0
    assert [(d["start"], d["end"]) for d in found["rotted"]["found"]] == [(1000, 2000)]
    assert (found["rotted"]["wrong"], found["rotted"]["refused"]) == (0, 1000)


def test_the_demo_tells_its_story_in_plain_text_and_ends_with_what_to_type(
    waterclock, quick, tmp_path
):
    result = waterclock("demo", "--data", tmp_path / "demo")

    assert result.exit_code == 0
    assert re.findall(r"^(\d)  ", result.stdout, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert "\x1b" not in result.output
    assert "Every promise was kept" in result.stdout
    assert "0 lost" in result.stdout
    assert f"log show {tmp_path}/demo/log" in result.stdout
    assert waterclock("log", "check", tmp_path / "demo" / "log").exit_code == 0
    assert waterclock("log", "check", tmp_path / "demo" / "damaged").exit_code == 1


def test_a_lost_message_fails_the_demo(waterclock, quick, monkeypatch, tmp_path):
    monkeypatch.setattr(tour, "crash", lambda folder: replace(KILLED, found=49))

    told = waterclock("demo", "--data", tmp_path / "one")
    found = waterclock("demo", "--json", "--data", tmp_path / "two")

    assert told.exit_code == found.exit_code == 1
    assert "NOT KEPT: an acknowledged message was lost" in told.stdout
    assert json.loads(found.stdout)["lost"] == 1


def test_a_folder_with_something_in_it_is_refused(waterclock, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")

    result = waterclock("demo", "--data", tmp_path)

    assert result.exit_code == 2
    assert "is not an empty folder" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_made_is_told_in_one_line(waterclock, tmp_path):
    (tmp_path / "file").write_text("x")

    result = waterclock("demo", "--data", tmp_path / "file" / "demo")

    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: cannot make {tmp_path}/file/demo (Not a directory)")


def test_a_writer_that_ends_by_itself_is_told(tmp_path):
    (tmp_path / "notes.txt").write_text("x")

    with pytest.raises(StorageFailed, match="ended by itself: error: the folder holds no log"):
        tour.crash(tmp_path)


def test_lies_are_noticed():
    """Each number that a broken log would give is named as a broken promise."""
    damage = Damage(0, 1, Offset(0), Offset(1), "rot")
    good = tour.Acts(
        tour.Published(2_000, 2, 1.0, 1.0, 2_000),
        tour.Repeated(1_000, 0, 1_000, 1.0),
        tour.Promised(tour.PROMISES, [], [1]),
        KILLED,
        tour.Rotted("copy", "file", 1, [damage], True, 10, 1, 0, True),
    )
    bad = tour.Acts(
        good.published,
        replace(good.repeated, written=1, same_offsets=999),
        good.promised,
        replace(KILLED, found=49, earlier=1_999, promises=1),
        replace(good.rotted, is_found=False, wrong=1, is_unchanged=False),
    )

    assert good.broken() == []
    assert len(bad.broken()) == 8


def test_the_program_is_named_as_it_can_be_called(monkeypatch, tmp_path):
    command = tmp_path / "waterclock"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)

    monkeypatch.setattr(sys, "argv", [str(command)])
    assert narrator.program() == str(command)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert narrator.program() == "waterclock"
    monkeypatch.setattr(sys, "argv", ["/x/__main__.py"])
    assert narrator.program().endswith("-m waterclock")


@pytest.mark.parametrize("value_bytes", [50, 5_000])  # many batches, or one, per index entry
def test_all_but_the_damaged_batch_is_served(tmp_path, value_bytes):
    with open_log(tmp_path / "log", log=tour.LOG) as log:
        for first in range(0, 50, 10):
            log.publish([Message(bytes([n]) * value_bytes) for n in range(first, first + 10)])

    found = tour.rot(tmp_path / "log", tmp_path / "copy", at=25)

    assert [(d.start, d.end) for d in found.found] == [(20, 30)]
    assert (found.served, found.refused, found.wrong) == (40, 10, 0)
    assert found.is_found
    assert found.is_unchanged
