"""The dispatcher's demo: a mistake is one line, kills are planned, and what is lost is noticed."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from rich.console import Console
from typer.testing import CliRunner

from demos.dispatch import __main__ as program
from demos.dispatch import chaos, readings
from demos.dispatch.outcome import Outcome
from demos.dispatch.screen import Screen, picture
from demos.dispatch.snapshot import ProcessRow, Rates, Snapshot
from waterclock.dispatch.worker.handlers import PermanentError, parse_json

KEPT = Outcome(
    source_kind="stream", sent=1_000, written=998, dead=2, spoiled=2, twice=0, seconds=2.0,
    redelivered=7, takeovers_s=[1.9], killed={"leader": 1, "worker": 1}, epochs=2,
)  # fmt: skip
SNAPSHOT = Snapshot(
    at_s=1.5, sent=1_000, written=990, dead=1, queued=3, pending=6, redelivered=2, epoch=41,
    processes=(ProcessRow("dispatcher-a", "leads", 990), ProcessRow("worker-1", "killed", 500)),
    events=("1.2 s  kill -9 worker-1",), sent_rate=700, written_rate=690,
)  # fmt: skip


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--source-kind", "queue"], "neither stream nor pubsub"),
        (["--kill", "redis"], "neither leader nor worker"),
    ],
)
def test_a_mistake_is_one_line(args, problem):
    result = CliRunner().invoke(program.app, args)

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert problem in line


def test_without_a_redis_the_demo_says_what_to_install(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "demos.dispatch"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "apt install redis-server" in line


def test_kills_take_turns_and_leave_the_end_alone():
    kills = chaos.plan(chaos.VICTIMS, seconds=60, every_s=4, rng=Random(1))

    assert [kill.victim for kill in kills[:4]] == ["leader", "worker", "leader", "worker"]
    times = [kill.at_s for kill in kills]
    assert times == sorted(times)
    assert times[-1] < 60 - chaos.QUIET_S
    assert kills == chaos.plan(chaos.VICTIMS, seconds=60, every_s=4, rng=Random(1))
    assert chaos.plan((), seconds=60, every_s=4, rng=Random(1)) == []


def test_a_device_sends_readings_that_a_worker_can_write_and_some_that_nobody_can():
    rng = Random(1)
    bodies = {n: readings.reading(n, rng, 1_800_000_000_000) for n in range(5_000)}
    spoiled = {number for number in bodies if readings.is_spoiled(number)}

    assert len(spoiled) == 2
    for number in bodies.keys() - spoiled:
        assert readings.handle(json.loads(bodies[number]))["message_id"] == number
    for number in spoiled:
        with pytest.raises(PermanentError):
            parse_json(bodies[number])


@pytest.mark.parametrize(
    ("lie", "broken"),
    [
        ({"written": 997}, "1 messages were lost, 0 of them announced"),
        ({"written": 999}, "1 messages are there that nobody sent"),
        ({"twice": 3}, "3 entries are in the stream twice"),
        ({"dead": 3, "written": 997}, "1 good messages are dead"),
        (
            {"source_kind": "pubsub", "written": 990, "announced_lost": 5},
            "8 messages were lost, 5 of them",
        ),
    ],
)
def test_every_lie_is_noticed(lie, broken):
    assert KEPT.broken() == []

    (found,) = replace(KEPT, **lie).broken()

    assert broken in found


def test_pubsub_may_lose_what_is_announced_and_the_stream_may_not():
    lossy = replace(KEPT, written=990, announced_lost=8)

    assert replace(lossy, source_kind="pubsub").broken() == []
    assert replace(lossy, source_kind="pubsub", announced_lost=0, gaps=1).broken() == []
    assert lossy.broken() != []


def test_a_pipe_gets_a_line_a_second_and_a_summary(capsys):
    screen = Screen(Console(width=160), seconds=2)
    with screen.open():
        for tenth in range(20):
            screen.show(replace(SNAPSHOT, at_s=tenth / 10))
    screen.end(KEPT)

    shown = capsys.readouterr().out
    assert len(re.findall(r"sent 1,000 \(700/s\)", shown)) == 2
    assert "pending 6" in shown
    assert "epoch 41" in shown
    assert re.search(r"998\s+in the output stream", shown)
    assert "Nothing lost, nothing twice; 2 kills" in shown
    assert "\x1b" not in shown


def test_a_broken_guarantee_is_shown_at_the_end(capsys):
    Screen(Console(width=160), seconds=2).end(replace(KEPT, twice=3))

    shown = capsys.readouterr().out
    assert "NOT KEPT: 3 entries are in the stream twice" in shown
    assert "Nothing lost" not in shown


def test_a_terminal_gets_a_picture_of_everybody():
    out = Console(width=100, force_terminal=True, color_system=None)
    with out.capture() as drawn:
        out.print(picture(out, SNAPSHOT, seconds=20))

    for text in ("leader epoch 41", "dispatcher-a", "leads", "worker-1", "killed", "kill -9"):
        assert text in drawn.get()


def test_rates_are_those_of_the_last_second():
    rates = Rates()

    assert rates.of(0.0, 0, 0) == (0.0, 0.0)
    assert rates.of(0.5, 100, 50) == (200.0, 100.0)
    assert rates.of(2.0, 100, 50) == (0.0, 0.0)


def test_a_broken_demo_ends_with_one(monkeypatch):
    monkeypatch.setattr(program, "_run", lambda options, as_json: replace(KEPT, twice=1))

    result = CliRunner().invoke(program.app, ["--json"])

    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["twice"], found["lost"]) == (False, 1, 0)
