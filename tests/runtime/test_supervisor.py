"""What a supervisor such as systemd hears of a process (sd_notify)."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from waterclock.runtime.supervisor import tell_ready, tell_reloading, tell_stopping

BYTES_MAX = 4096


@pytest.fixture(params=["path", "abstract"])
def supervisor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    name = "@" if request.param == "abstract" else ""
    name += str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0", 1))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def test_the_supervisor_hears_of_each_step(supervisor):
    tell_ready()
    tell_reloading()
    tell_ready()
    tell_stopping()

    heard = [supervisor.recv(BYTES_MAX).decode() for _ in range(4)]
    assert heard[0] == heard[2] == "READY=1"
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", heard[1])
    assert heard[3] == "STOPPING=1"


def test_without_a_supervisor_nothing_is_told(monkeypatch, caplog):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)

    tell_ready()

    assert caplog.records == []


def test_a_supervisor_that_is_gone_is_one_line_in_the_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))

    tell_ready()

    assert [record.getMessage().split()[0] for record in caplog.records] == ["supervisor_not_told"]
