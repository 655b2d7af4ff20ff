"""Dispatchers and workers on the command line: mistakes in one line, and what the show tells."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from rich.console import Console

from waterclock.cli import daemon
from waterclock.cli.commands import dispatch_demo
from waterclock.cli.dispatch_show import chaos, readings
from waterclock.cli.dispatch_show.outcome import Outcome
from waterclock.cli.dispatch_show.screen import Screen, picture
from waterclock.cli.dispatch_show.snapshot import Player, Rates, Scene
from waterclock.dispatch.worker.handlers import PermanentError, parse_json
from waterclock.model.errors import BadConfig

KEPT = Outcome(
    inlet="stream", sent=1_000, written=998, dead=2, spoiled=2, twice=0, seconds=2.0,
    redelivered=7, takeovers_s=[1.9], killed={"leader": 1, "worker": 1}, epochs=2,
)  # fmt: skip
SCENE = Scene(
    at_s=1.5, sent=1_000, written=990, dead=1, queued=3, pending=6, redelivered=2, epoch=41,
    players=(Player("dispatcher-a", "leads", 990), Player("worker-1", "killed", 500)),
    events=("1.2 s  kill -9 worker-1",), sent_rate=700, written_rate=690,
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["dispatch", "--inlet", "queue"], "dispatch.inlet"),
        (["dispatch", "--set", "lease"], "--set 'lease' is not of the form name=value"),
        (["dispatch", "--set", "leese=2s"], "did you mean dispatch.lease?"),
        (["dispatch", "--set", "dispatch.lease=1ms"], "dispatch.lease"),
        (["dispatch", "--config", "nowhere.yml"], "--config nowhere.yml: No such file"),
        (["worker", "--handler", "handle"], "write module:function"),
        (["worker", "--handler", "no_such_module:handle"], "there is no handler"),
        (["worker", "--handler", "json:no_such_function"], "there is no handler"),
        (["worker", "--concurrency", "0"], "worker.concurrency"),
        (["worker", "--set", "sink=waterclock"], "worker.topic"),
        (["dispatch", "demo", "--inlet", "queue"], "neither stream nor pubsub"),
        (["dispatch", "demo", "--kill", "redis"], "neither leader nor worker"),
    ],
)
def test_a_mistake_is_told_in_one_line(waterclock, words, told):
    result = waterclock(*words)

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line


def test_settings_come_from_the_file_and_the_environment_too(waterclock, tmp_path, monkeypatch):
    file = tmp_path / "dispatch.yml"
    file.write_text("dispatch: {lease: soon}")

    assert "dispatch.lease" in waterclock("dispatch", "--config", file).stderr

    monkeypatch.setenv("WATERCLOCK_WORKER__CREDIT", "many")

    assert "worker.credit" in waterclock("worker").stderr


def test_what_is_not_installed_is_said_with_the_cure(waterclock, monkeypatch):
    monkeypatch.setitem(sys.modules, "hiredis", None)

    with pytest.raises(BadConfig, match=r"pip install 'waterclock\[redis\]'"):
        daemon.require_redis("dispatch")
    assert waterclock("worker").exit_code == 2


def test_without_a_redis_the_demo_says_what_to_install(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "waterclock", "dispatch", "demo"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "apt install redis-server" in line


# The show


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
        ({"inlet": "pubsub", "written": 990, "told_lost": 5}, "8 messages were lost, 5 of them"),
    ],
)
def test_every_lie_is_noticed(lie, broken):
    assert KEPT.broken() == []

    (found,) = replace(KEPT, **lie).broken()

    assert broken in found


def test_pubsub_may_lose_what_is_announced_and_the_stream_may_not():
    lossy = replace(KEPT, written=990, told_lost=8)

    assert replace(lossy, inlet="pubsub").broken() == []
    assert replace(lossy, inlet="pubsub", told_lost=0, gaps=1).broken() == []
    assert lossy.broken() != []


def test_a_pipe_gets_a_line_a_second_and_a_summary(capsys):
    screen = Screen(Console(width=160), seconds=2)
    with screen.open():
        for tenth in range(20):
            screen.show(replace(SCENE, at_s=tenth / 10))
    screen.end(KEPT)

    told = capsys.readouterr().out
    assert len(re.findall(r"sent 1,000 \(700/s\)", told)) == 2
    assert "pending 6" in told
    assert "epoch 41" in told
    assert re.search(r"998\s+in the output stream", told)
    assert "Nothing lost, nothing twice; 2 kills" in told
    assert "\x1b" not in told


def test_a_broken_promise_is_told_at_the_end(capsys):
    Screen(Console(width=160), seconds=2).end(replace(KEPT, twice=3))

    told = capsys.readouterr().out
    assert "NOT KEPT: 3 entries are in the stream twice" in told
    assert "Nothing lost" not in told


def test_a_terminal_gets_a_picture_of_everybody():
    out = Console(width=100, force_terminal=True, color_system=None)
    with out.capture() as drawn:
        out.print(picture(out, SCENE, seconds=20))

    for text in ("leader epoch 41", "dispatcher-a", "leads", "worker-1", "killed", "kill -9"):
        assert text in drawn.get()


def test_rates_are_those_of_the_last_second():
    rates = Rates()

    assert rates.of(0.0, 0, 0) == (0.0, 0.0)
    assert rates.of(0.5, 100, 50) == (200.0, 100.0)
    assert rates.of(2.0, 100, 50) == (0.0, 0.0)


def test_a_broken_demo_ends_with_one(waterclock, monkeypatch):
    monkeypatch.setattr(dispatch_demo, "_played", lambda play, as_json: replace(KEPT, twice=1))

    result = waterclock("dispatch", "demo", "--json")

    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["twice"], found["lost"]) == (False, 1, 0)
