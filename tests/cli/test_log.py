"""`log check` finds every kind of damage and changes nothing; `log repair` gives up what is
damaged only with --accept-loss, and the log grows again."""

import json
import os
import shutil

import pytest

from tests.cli.logs import SMALL, contents, flip, segments
from waterclock.model.message import Message
from waterclock.storage.installation.lost_log import NAME as LOST
from waterclock.storage.local_log import open_log

IN_A_BODY = 64 + 72 + 100
"""A byte inside the first frame's body."""
IN_A_HEADER = 64 + 20
"""A byte inside the first frame's header."""


def test_a_whole_log_passes(waterclock, log_folder):
    result = waterclock("log", "check", log_folder)

    assert result.exit_code == 0
    assert "All 13 frames" in result.stdout
    assert "3 open scheduled messages." in result.stdout
    assert result.stderr == ""


def test_the_answer_for_machines_counts_frames_by_type(waterclock, log_folder):
    found = json.loads(waterclock("log", "check", log_folder, "--json").stdout)

    assert found["ok"] is True
    assert (found["start"], found["end"], found["scheduled"]) == (0, 63, 3)
    assert found["segments"] == len(segments(log_folder)) > 1
    assert found["types"]["data"]["rows"] == 60
    assert found["types"]["scheduled"] == {
        "frames": 1, "rows": 3, "bytes": found["types"]["scheduled"]["bytes"],
    }  # fmt: skip
    assert (found["damage"], found["torn"]) == ([], None)


@pytest.mark.parametrize("position", [IN_A_BODY, IN_A_HEADER])
@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("has_sidecars", [True, False])
def test_a_flipped_bit_is_found_and_named(waterclock, log_folder, position, number, has_sidecars):
    if not has_sidecars:
        for file in (*log_folder.glob("*.ids"), *log_folder.glob("*.index")):
            file.unlink()
    file = segments(log_folder)[number]
    flip(file, position)
    before = contents(log_folder)
    base = int(file.stem)

    result = waterclock("log", "check", log_folder)
    found = json.loads(waterclock("log", "check", log_folder, "--json").stdout)

    assert result.exit_code == 1
    assert f"{file.name}: offsets [{base}, " in result.stdout
    assert [(d["file"], d["start"]) for d in found["damage"]] == [(file.name, base)]
    assert found["ok"] is False
    assert contents(log_folder) == before


def test_damage_in_two_segments_is_named_twice(waterclock, log_folder):
    first, second, *_ = segments(log_folder)
    flip(first, IN_A_BODY)
    flip(second, IN_A_BODY)

    found = json.loads(waterclock("log", "check", log_folder, "--json").stdout)

    assert [d["file"] for d in found["damage"]] == [first.name, second.name]


def test_a_missing_end_is_damage(waterclock, log_folder):
    first, second, *_ = segments(log_folder)
    os.truncate(first, first.stat().st_size - 200)

    found = json.loads(waterclock("log", "check", log_folder, "--json").stdout)

    assert [(d["file"], d["end"]) for d in found["damage"]] == [(first.name, int(second.stem))]


def test_a_torn_end_is_told_and_is_no_damage(waterclock, log_folder):
    with segments(log_folder)[-1].open("ab") as file:
        file.write(b"half a frame, when the power went")
    before = contents(log_folder)

    result = waterclock("log", "check", log_folder)

    assert result.exit_code == 0
    assert "torn at offset 63" in result.stdout
    assert json.loads(waterclock("log", "check", log_folder, "--json").stdout)["torn"] == {
        "offset": 63,
        "position": segments(log_folder)[-1].stat().st_size - 33,
    }
    assert contents(log_folder) == before


def test_a_folder_in_use_is_left_alone(waterclock, log_folder):
    with open_log(log_folder, log=SMALL):
        result = waterclock("log", "check", log_folder)

    assert result.exit_code == 2
    assert f"in use by process {os.getpid()}" in result.stderr


def test_a_copy_is_checked_while_the_log_is_in_use(waterclock, log_folder, tmp_path):
    with open_log(log_folder, log=SMALL) as log:
        log.publish([Message(b"new")])
        copy = shutil.copytree(log_folder, tmp_path / "copy")
        result = waterclock("log", "check", copy)

    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "does not exist: name the folder of a log"),
        (lambda path: path.write_text("x"), "is not a folder: name the folder of a log"),
        (lambda path: path.mkdir(), "holds no log"),
        (lambda path: (path.mkdir(), (path / "notes.txt").write_text("x")), "holds no log"),
        (lambda path: (path.mkdir(), (path / "x.seg").write_text("x")), "x.seg is not named like"),
        (
            lambda path: (path.mkdir(), (path / f"{0:020}.seg").write_text("x" * 99)),
            "is not a Waterclock segment: move it elsewhere",
        ),
        (
            lambda path: (path.mkdir(), (path / f"{0:020}.seg").mkdir()),
            "is not a regular file",
        ),
        (
            lambda path: (path.mkdir(), (path / "recovery-point").write_text("x")),
            "restore them",
        ),
    ],
)
@pytest.mark.parametrize("command", ["check", "show"])
def test_what_is_no_log_is_told_in_one_line(waterclock, tmp_path, make, said, command):
    path = tmp_path / "a\nfolder"
    make(path)

    result = waterclock("log", command, path)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


def test_an_error_of_the_system_is_told_in_one_line(waterclock):
    result = waterclock("log", "check", "x" * 5_000)

    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.endswith("File name too long\n")


def test_all_logs_of_a_data_folder_are_checked(waterclock, log_folder):
    data = log_folder.parent
    partition = data / "topics" / "orders-1a2b" / "0"
    shutil.copytree(log_folder, partition)

    whole = waterclock("log", "check", data)
    flip(segments(partition)[0], IN_A_BODY)
    damaged = waterclock("log", "check", data)
    shown = waterclock("log", "check", data, "--json").stdout.splitlines()

    assert whole.exit_code == 0
    assert f"2 logs in {data}: All is whole." in whole.stdout
    assert damaged.exit_code == 1
    assert f"2 logs in {data}: 1 of 2 logs are damaged." in damaged.stdout
    assert [(log["folder"], log["ok"]) for log in map(json.loads, shown)] == [
        (str(log_folder), True), (str(partition), False),
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["show", "repair"])
def test_commands_for_one_log_say_which_there_are(waterclock, log_folder, command):
    result = waterclock("log", command, log_folder.parent)

    assert result.exit_code == 2
    assert f"is no log, but holds some: name one of {log_folder}" in result.stderr


def test_without_a_word_it_only_tells_what_would_be_lost(waterclock, log_folder):
    flip(segments(log_folder)[0], 64 + 72 + 100)
    before = contents(log_folder)

    result = waterclock("log", "repair", log_folder)

    assert result.exit_code == 1
    assert "Would be given up: 1 damaged range" in result.stdout
    assert "offsets [0, 5)" in result.stdout
    assert contents(log_folder) == before


def test_an_accepted_loss_leaves_all_other_messages_and_a_log_that_grows(waterclock, log_folder):
    file = segments(log_folder)[0]
    flip(file, 64 + 72 + 100)
    damaged = file.read_bytes()

    result = waterclock("log", "repair", log_folder, "--accept-loss", "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["lost"][0]["start"] == 0
    assert (log_folder / f"{file.name}.damaged.0").read_bytes() == damaged
    assert waterclock("log", "check", log_folder).exit_code == 0
    with open_log(log_folder, log=SMALL) as log:
        assert [stored.offset for stored in log.read()] == list(range(5, 60))
        assert log.publish([Message(b"new", message_id=b"new")]).offsets[0] == 63


def test_a_lost_log_is_whole_once_the_loss_is_accepted(waterclock, log_folder):
    (log_folder / LOST).write_text("as it was before these files were copied back")
    before = waterclock("log", "repair", log_folder)

    result = waterclock("log", "repair", log_folder, "--accept-loss")

    assert before.exit_code == 1
    assert result.exit_code == 0
    for shown in (before.stdout, result.stdout):
        assert "this replica's log was here and is gone" in shown
    assert "Given up: 1 damaged range" in result.stdout
    assert ".damaged" not in result.stdout
    assert not (log_folder / LOST).exists()
    assert waterclock("log", "check", log_folder).exit_code == 0
    with open_log(log_folder, log=SMALL) as log:
        assert [stored.offset for stored in log.read()] == list(range(60))


def test_a_whole_log_needs_no_repair(waterclock, log_folder):
    before = contents(log_folder)

    result = waterclock("log", "repair", log_folder, "--accept-loss")

    assert result.exit_code == 0
    assert "Nothing to repair" in result.stdout
    assert contents(log_folder) == before
