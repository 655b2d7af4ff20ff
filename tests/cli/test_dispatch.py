"""Dispatchers and workers on the command line: a mistake is one line."""

import sys

import pytest

from waterclock.cli import daemon
from waterclock.model.errors import BadConfig


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["dispatch", "--source-kind", "queue"], "dispatch.source_kind"),
        (["dispatch", "--set", "lease"], "--set 'lease' is not of the form name=value"),
        (["dispatch", "--set", "leese=2s"], "did you mean dispatch.lease?"),
        (["dispatch", "--set", "dispatch.lease=1ms"], "dispatch.lease"),
        (["dispatch", "--config", "nowhere.yml"], "--config nowhere.yml: No such file"),
        (["worker", "--handler", "handle"], "write module:function"),
        (["worker", "--handler", "no_such_module:handle"], "there is no handler"),
        (["worker", "--handler", "json:no_such_function"], "there is no handler"),
        (["worker", "--concurrency", "0"], "worker.concurrency"),
        (["worker", "--set", "sink=waterclock"], "worker.topic"),
    ],
)
def test_a_mistake_is_told_in_one_line(waterclock, args, said):
    result = waterclock(*args)

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


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
