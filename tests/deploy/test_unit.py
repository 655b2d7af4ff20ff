"""deploy/waterclock.service: systemd takes it, and a node runs under what it forbids."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from waterclock.model.config import load_config

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "waterclock.service"
EXPOSURE_MAX = 15
"""In tenths of what `systemd-analyze security` counts: 1.5 is half of what it calls OK."""
READY_S_MAX = 60

FORBIDDING = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 38, 65, 1
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
is_kept = libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) == 0
print("MemoryDenyWriteExecute" if is_kept else os.strerror(ctypes.get_errno()), flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def setting(name: str) -> str:
    found = re.findall(rf"(?m)^{name}=(.*)$", UNIT.read_text())
    assert found, name
    return str(found[-1])


def analyzed(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Have systemd look at the unit, with a program that is there."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("offline: there is no systemd-analyze (Debian: apt install systemd)")
    unit = folder / UNIT.name
    program = setting("ExecStart").split()[0]
    unit.write_text(UNIT.read_text().replace(program, f"{sys.prefix}/bin/waterclock"))
    return subprocess.run(
        ["systemd-analyze", *words, str(unit)], capture_output=True, text=True, check=False
    )


def test_systemd_takes_the_unit_without_a_word(tmp_path):
    done = analyzed(tmp_path, "verify", "--man=no")

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_little_of_the_machine_is_exposed(tmp_path):
    done = analyzed(tmp_path, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}")

    assert done.returncode == 0, done.stdout


def test_a_stop_has_time_to_drain():
    config = load_config(yaml_text=None, environ={}, flags={})

    assert int(setting("TimeoutStopSec").removesuffix("s")) * 1_000 > config.server.drain_ms


def test_a_node_runs_without_memory_that_is_written_and_run_and_tells_when(tmp_path, monkeypatch):
    assert setting("MemoryDenyWriteExecute") == setting("NoNewPrivileges") == "yes"
    assert (setting("Type"), setting("ExecReload")) == ("notify", "/bin/kill -HUP $MAINPID")
    (tmp_path / "node.yml").write_text("cluster: {grpc_port: 0, http_port: 0}\n")
    words = [
        part.replace("/etc/waterclock", str(tmp_path)) for part in setting("ExecStart").split()
    ]
    name, _, _ = setting("Environment").partition("=")
    monkeypatch.setenv(name, str(tmp_path / "data"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(READY_S_MAX)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        program = [f"{sys.prefix}/bin/python", f"{sys.prefix}/bin/waterclock", *words[1:]]
        with subprocess.Popen(
            [sys.executable, "-c", FORBIDDING, *program], stdout=subprocess.PIPE, text=True
        ) as node:
            try:
                assert systemd.recv(100) == b"READY=1"
                node.send_signal(signal.SIGTERM)
                assert systemd.recv(100) == b"STOPPING=1"
                assert node.wait() == 0
                assert node.stdout is not None
                # Kernels before 6.3 have systemd forbid it by a filter of system calls.
                assert node.stdout.readline().strip() in {
                    "MemoryDenyWriteExecute", os.strerror(22),
                }  # fmt: skip
            finally:
                node.kill()
