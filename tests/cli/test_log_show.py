"""`log show` lists segments, scheduled messages and messages, and shows strangers' bytes safely."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.logs import SMALL, contents, flip, segments
from waterclock.model.ids import Epoch, Millis
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.local_log import open_log
from waterclock.storage.opening import open_partition
from waterclock.storage.rewrite import Wanted, rewrites


def shown(waterclock, folder: Path, *args: object) -> dict[str, Any]:
    result = waterclock("log", "show", folder, *args, "--json")
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def test_messages_are_listed_from_the_start(waterclock, log_folder):
    found = shown(waterclock, log_folder, "--count", 7)

    assert [row["offset"] for row in found["messages"]] == list(range(7))
    assert {**found["messages"][4], "append_ms": 0} == {
        "offset": 4, "kind": "data", "append_ms": 0, "id": "id-4", "key": "key 1",
        "value": "value 4", "headers": None, "due_ms": None,
    }  # fmt: skip


@pytest.mark.parametrize(("first", "offsets"), [(57, [57, 58, 59]), (-5, [58, 59, 60]), (63, [])])
def test_a_listing_starts_anywhere_and_counts_back_from_the_end(
    waterclock, log_folder, first, offsets
):
    found = shown(waterclock, log_folder, "--from", first, "--count", 3)

    assert [row["offset"] for row in found["messages"]] == offsets


def test_an_offset_outside_is_refused(waterclock, log_folder):
    result = waterclock("log", "show", log_folder, "--from", 64)

    assert result.exit_code == 2
    assert result.stderr == "error: offset 64 is outside the log [0, 63)\n"


def test_the_table_names_segments_scheduled_messages_and_messages(waterclock, log_folder):
    result = waterclock("log", "show", log_folder, "--from", 59)

    assert result.exit_code == 0
    assert "3 open scheduled messages, the next:" in result.stdout
    lines = [line.split()[:3] for line in result.stdout.splitlines()]
    starts = [str(int(file.stem)) for file in segments(log_folder)]
    assert [line[:2] for line in lines[3 : 3 + len(starts)]] == [
        [start, end] for start, end in zip(starts, [*starts[1:], "63"], strict=True)
    ]
    assert ["59", "data", "id-59"] in lines
    assert ["60", "scheduled", "p-0"] in lines


def test_nothing_is_changed(waterclock, log_folder):
    before = contents(log_folder)

    waterclock("log", "show", log_folder)

    assert contents(log_folder) == before


def test_an_empty_log_is_shown(waterclock, tmp_path):
    open_log(tmp_path / "log", log=SMALL).close()

    result = waterclock("log", "show", tmp_path / "log")

    assert result.exit_code == 0
    assert "0 open scheduled messages." in result.stdout
    assert "No messages there." in result.stdout


def test_damage_stands_in_its_place_and_the_rest_is_shown(waterclock, log_folder):
    flip(segments(log_folder)[0], 64 + 72 + 100)

    rows = shown(waterclock, log_folder, "--count", 3)["messages"]

    assert (rows[0]["kind"], rows[0]["damage"]["start"], rows[0]["damage"]["end"]) == (
        "damaged",
        0,
        5,
    )
    assert [row["offset"] for row in rows[1:]] == [5, 6]
    table = waterclock("log", "show", log_folder, "--count", 3).stdout
    assert "offsets [0, 5): body of the frame at offset 0 fails its checksum" in table
    assert "1 known" in table


def test_a_torn_end_is_told(waterclock, log_folder):
    with segments(log_folder)[-1].open("ab") as file:
        file.write(b"half a frame")

    assert "cuts it off at offset 63" in waterclock("log", "show", log_folder).stdout


def test_bytes_that_are_no_text_are_shown_as_what_they_are(waterclock, tmp_path):
    hostile = b"\x1b[2J [red]danger\n"
    with open_log(tmp_path / "log", log=SMALL) as log:
        log.publish([Message(hostile, headers={"h": b"\xff"}), Message(b"\xff\xfe"), Message(None)])

    rows = shown(waterclock, tmp_path / "log")["messages"]
    table = waterclock("log", "show", tmp_path / "log").stdout

    assert [row["value"] for row in rows] == [hostile.decode(), {"base64": "//4="}, None]
    assert rows[0]["headers"] == {"h": {"base64": "/w=="}}
    assert r"\x1b[2J [red]danger\n" in table
    assert "\x1b" not in table
    assert "0xfffe" in table
    assert "(tombstone)" in table


def test_every_kind_of_frame_has_a_line(waterclock, tmp_path):
    store = open_partition(
        OsFolder(tmp_path / "log"), log=SMALL, dedup=DedupConfig(), now_ms=0, new_log_id=bytes(16)
    )
    store.begin_epoch(Epoch(3), now_ms=1)
    store.close()
    with open_log(tmp_path / "log", log=SMALL) as log:
        due_ms = Millis(log.now_ms() + 1_000_000)
        log.publish([Message(b"later %d" % n, due_ms=due_ms) for n in range(12)])
    store = open_partition(
        OsFolder(tmp_path / "log"), log=SMALL, dedup=DedupConfig(), now_ms=0, new_log_id=bytes(16)
    )
    store.fire(np.array([1]), now_ms=due_ms)
    store.reschedule(np.array([2]), np.array([due_ms + 1]), now_ms=due_ms)
    store.cancel(np.arange(3, 13), now_ms=due_ms)
    store.close()

    rows = shown(waterclock, tmp_path / "log", "--from", 0)["messages"]
    table = waterclock("log", "show", tmp_path / "log").stdout

    kinds = ["epoch", *["scheduled"] * 12, "fired", "reschedule", "cancel"]
    assert [row["kind"] for row in rows] == kinds
    assert "epoch 3 begins" in table
    assert "scheduled messages 2 to " in table
    assert "scheduled messages 3, 4, 5, 6, 7, 8, 9, 10, …" in table


def test_what_retention_left_is_shown(waterclock, log_folder):
    store = open_partition(
        OsFolder(log_folder), log=SMALL, dedup=DedupConfig(), now_ms=0, new_log_id=bytes(16)
    )
    keep_from = store.segments[-1].base_offset
    for job in rewrites(store, Wanted(keep_from=keep_from), now_ms=store.log_time_ms):
        job.run()
        job.finish()
    store.close()

    rows = shown(waterclock, log_folder)["messages"]

    assert [row["kind"] for row in rows[:2]] == ["noop", "seen"]
    assert "ids of messages that are gone" in waterclock("log", "show", log_folder).stdout
