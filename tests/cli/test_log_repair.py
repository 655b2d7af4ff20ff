"""`log repair` gives up what is damaged only when told to, and the log grows again."""

import json

from tests.cli.logs import SMALL, contents, flip, segments
from waterclock.model.message import Message
from waterclock.storage.local_log import open_log


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


def test_a_whole_log_needs_no_repair(waterclock, log_folder):
    before = contents(log_folder)

    result = waterclock("log", "repair", log_folder, "--accept-loss")

    assert result.exit_code == 0
    assert "Nothing to repair" in result.stdout
    assert contents(log_folder) == before
