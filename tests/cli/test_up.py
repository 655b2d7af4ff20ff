"""`up` runs a node, says where it is and what to type, and stops well; or says why it cannot."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import waterclock as package
from tests.cli.nodes import running
from waterclock.cli.commands.up import tell_ready
from waterclock.model.config import load_config
from waterclock.security.folder import SecureFolder
from waterclock.security.tls import client_context
from waterclock.server.addresses import Addresses


def test_a_program_is_told_the_ports(node, tmp_path):
    shown = node.shown

    assert shown["version"] == package.__version__
    assert shown["pid"] == node.process.pid
    assert shown["grpc_address"] == f"127.0.0.1:{shown['grpc_port']}"
    assert shown["http_address"] == f"http://127.0.0.1:{shown['http_port']}"
    assert Path(shown["data_folder"]).is_dir()
    with urllib.request.urlopen(f"{shown['http_address']}/health/ready") as answer:
        assert answer.status == 200


def test_a_person_is_told_what_to_type_and_what_stopping_does(tmp_path):
    command = [sys.executable, "-m", "waterclock", "up", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [*command, "--grpc-port", "0", "--http-port", "0", "--set", "node.name=one"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(12)]
        process.send_signal(signal.SIGTERM)
        rest, complaints = process.communicate()

    shown = "".join(said)
    assert said[0] == f"Waterclock {package.__version__}: node one is ready\n"
    address = re.search(r"gRPC +(\S+)", shown)
    assert address is not None
    assert f"export WATERCLOCK_ADDRESS={address[1]}" in shown
    for command_word in ("publish", "subscribe", "schedule list", "/metrics"):
        assert command_word in shown
    assert "Stopping: calls have up to 10 s to finish" in rest
    assert "everything is on disk." in rest
    assert (process.returncode, complaints) == (0, "")


def test_a_node_with_a_secure_folder_says_https_and_whose_credential_to_use(tmp_path):
    folder = SecureFolder(tmp_path / "data" / "secure")
    folder.path.parent.mkdir()
    folder.make(grpc_port=0, http_port=0, now_ms=time.time_ns() // 1_000_000)
    with running(tmp_path / "data") as node:
        shown = node.shown
        assert shown["is_secure"] is True
        assert shown["http_address"] == f"https://127.0.0.1:{shown['http_port']}"
        bearer = Path(shown["admin_credential"]).read_text().strip()
        request = urllib.request.Request(
            f"{shown['http_address']}/metrics", headers={"Authorization": f"Bearer {bearer}"}
        )
        context = client_context(folder.ca.read_bytes())
        with urllib.request.urlopen(request, context=context) as answer:
            assert answer.status == 200


def test_a_person_is_told_how_to_be_the_admin_of_a_secure_node(tmp_path, capsys):
    flags = {"node.data_folder": str(tmp_path / "my data")}
    config = load_config(yaml_text="", environ={}, flags=flags)

    tell_ready(config, Addresses("127.0.0.1", 9000, 8080, is_secure=True))

    shown = capsys.readouterr().out
    credential = f"'{tmp_path}/my data/secure/admin.credential'"
    assert f"export WATERCLOCK_CREDENTIAL=@{credential}" in shown
    assert f'-H "Authorization: Bearer $(cat {credential})" https://127.0.0.1:8080/m' in shown
    assert f"--cacert '{tmp_path}/my data/secure/ca.pem'" in shown


def test_a_person_is_told_what_a_node_of_a_cluster_does(capsys):
    flags = {"cluster.name": "shop", "cluster.bootstrap_nodes": "10.0.0.1:7946"}
    config = load_config(yaml_text="", environ={}, flags=flags)

    tell_ready(config, Addresses("127.0.0.1", 9000, 8080, is_secure=False))

    shown = capsys.readouterr().out
    assert re.search(r"cluster +shop\b", shown)
    assert "cluster members" in shown
    assert "send greetings" in shown
    assert "publish" not in shown


def test_what_was_published_is_there_after_a_restart(waterclock, tmp_path):
    with running(tmp_path / "data") as node:
        waterclock("publish", "orders", "hello", "--address", node.address)
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait() == 0
    with running(tmp_path / "data") as node:
        shown = waterclock("replay", "orders", "--json", "--address", node.address)

    assert json.loads(shown.stdout)["value"] == "hello"


def test_a_taken_port_is_told_in_one_line(waterclock, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = waterclock("up", "--data", tmp_path, "--grpc-port", port, "--http-port", 0)

    assert result.exit_code == 2
    assert result.stderr == (
        f"error: configuration cluster.grpc_port: cannot listen on 127.0.0.1:{port}: Address"
        " already in use; another node may be running; choose another port with --grpc-port\n"
    )


def test_a_node_that_lets_other_machines_in_must_be_secured_or_told_so(waterclock, tmp_path):
    result = waterclock("up", "--data", tmp_path, "--set", "server.host=0.0.0.0")

    assert result.exit_code == 2
    assert result.stderr == (
        "error: configuration server.host: 0.0.0.0 lets other machines in, and this node asks"
        f" nobody for a credential: run `waterclock secure init --data {tmp_path}`, or start it"
        " with --insecure (server.insecure) if something else guards its ports\n"
    )


def test_sighup_reads_the_settings_again_and_a_bad_file_keeps_the_old(tmp_path):
    file = tmp_path / "node.yml"
    file.write_text("topics: {topics_max: 5}\n")
    command = [sys.executable, "-m", "waterclock", "up", "--json", "--config", str(file)]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path / "data"), "--grpc-port", "0", "--http-port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        lines = []
        for text in (
            "topics: {topics_max: none}\n",
            "log: {level: info, format: json, fsync: always}\n",
        ):
            file.write_text(text)
            process.send_signal(signal.SIGHUP)
            lines.append(process.stderr.readline())
        lines.append(process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        process.communicate()

    assert process.returncode == 0
    assert "ERROR waterclock.server.reload reload_failed error=configuration topics." in lines[0]
    restart, reloaded = map(json.loads, lines[1:])
    assert (restart["event"], restart["fields"]) == (
        "reload_needs_restart",
        {"settings": "log.fsync"},
    )
    changed = "log.level,log.format,topics.topics_max"
    assert (reloaded["event"], reloaded["fields"]) == ("reloaded", {"changed": changed})


TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "waterclock", *sys.argv[1:]])
"""


def test_a_node_whose_terminal_is_closed_ends(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", TAKE_TERMINAL, "up", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [*command, "--grpc-port", "0", "--http-port", "0"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        while b"is ready" not in shown:
            shown += os.read(ours, 4_096)
        os.close(ours)

    assert process.returncode == 128 + signal.SIGHUP


def test_a_folder_in_use_is_told_in_one_line(waterclock, node):
    folder = node.shown["data_folder"]

    result = waterclock("up", "--data", folder, "--grpc-port", 0, "--http-port", 0)

    assert result.exit_code == 2
    assert f"is in use by process {node.process.pid}" in result.stderr
    assert result.stderr.endswith("with --data FOLDER\n")
    assert result.stderr.count("\n") == 1


def test_settings_come_from_flags_environment_and_file(waterclock, tmp_path, monkeypatch):
    file = tmp_path / "node.yaml"
    file.write_text("log: {fsync: sometimes}\n")

    by_file = waterclock("up", "--config", file)
    file.write_text("")
    by_flag = waterclock("up", "--config", file, "--set", "log.fsync=sometimes")
    monkeypatch.setenv("WATERCLOCK_LOG__FSYNC", "sometimes")
    by_environment = waterclock("up")

    problem = (
        "error: configuration log.fsync: expected group or always or interval, got 'sometimes'"
    )
    assert by_file.stderr == f"{problem} in the file\n"
    assert by_flag.stderr == f"{problem} in the flags\n"
    assert by_environment.stderr == f"{problem} in the environment\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--set", "log.fsync"], "--set 'log.fsync' is not of the form name=value"),
        (["--set", "log.fsink=always"], "log.fsink: is not a setting, in the flags; did you mean"),
        (["--config", "/nowhere"], "--config /nowhere: No such file or directory"),
        (["--grpc-port", "99999"], "cluster.grpc_port: expected a number from 0 to 65535"),
        (["--data", "/proc/nowhere"], "cannot make /proc/nowhere (No such file or directory)"),
    ],
)
def test_a_mistake_is_told_in_one_line(waterclock, args, line):
    result = waterclock("up", "--grpc-port", 0, "--http-port", 0, *args)

    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
