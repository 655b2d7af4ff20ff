"""`waterclock backup` and `restore`: of a node that runs, or of its data; what they say."""

import json

from tests.cli.nodes import running


def test_a_node_is_backed_up_and_restored(waterclock, node, tmp_path):
    address = ("--address", node.address)
    waterclock("publish", "backed-up", "hello", *address)

    result = waterclock("backup", tmp_path / "backup", *address)
    again = json.loads(waterclock("backup", tmp_path / "backup", *address, "--json").stdout)
    restored = waterclock("restore", tmp_path / "backup", "--data", tmp_path / "new")

    assert result.exit_code == 0, result.output
    assert f"to {tmp_path / 'backup'}: " in result.stdout
    assert f"restore {tmp_path / 'backup'} --data NEW_FOLDER" in result.stdout
    assert again["copied_segments"] <= 1  # progress of groups that others use meanwhile
    assert again["segments"] >= 3
    assert restored.exit_code == 0, restored.output
    assert "all whole" in restored.stdout
    assert f"up --data {tmp_path / 'new'}" in restored.stdout
    assert waterclock("log", "check", tmp_path / "new").exit_code == 0


def test_the_data_of_a_stopped_node_is_backed_up(waterclock, tmp_path):
    with running(tmp_path / "data") as node:
        waterclock("publish", "orders", "hello", "--address", node.address)
        refused = waterclock("backup", tmp_path / "backup", "--data", tmp_path / "data")

    result = waterclock("backup", tmp_path / "backup", "--data", tmp_path / "data", "--json")
    restored = waterclock("restore", tmp_path / "backup", "--data", tmp_path / "new", "--json")

    assert refused.exit_code == 2
    assert "its node runs: leave --data out" in refused.stderr
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["logs"] == 3  # its records, the topic, the streams
    assert json.loads(restored.stdout)["bytes"] == found["bytes"]
    assert json.loads(restored.stdout)["is_secured"] is False
    with running(tmp_path / "new") as node:
        got = waterclock("replay", "orders", "--address", node.address)
    assert "hello" in got.stdout

    (tmp_path / "data" / "secure").mkdir()
    secured = waterclock("backup", tmp_path / "backup", "--data", tmp_path / "data")
    restored = waterclock("restore", tmp_path / "backup", "--data", tmp_path / "secured")
    assert "Its secure folder is not in it" in secured.stdout
    assert f"is in no backup: copy it to {tmp_path / 'secured' / 'secure'}" in restored.stdout


def test_errors_say_what_to_do_next(waterclock, tmp_path):
    nobody = waterclock("backup", tmp_path / "backup", "--address", "localhost:1")
    nothing = waterclock("restore", tmp_path / "backup", "--data", tmp_path / "new")
    no_data = waterclock("backup", tmp_path / "backup", "--data", tmp_path / "nowhere")
    both = waterclock("backup", tmp_path / "x", "--data", tmp_path, "--address", "localhost:1")

    assert "name the data: --data FOLDER" in nobody.stderr
    assert "holds no finished backup" in nothing.stderr
    assert "is not the data of a node" in no_data.stderr
    assert "--address if it runs" in both.stderr
    assert {each.exit_code for each in (nobody, nothing, no_data, both)} == {2}
