"""Every command that connects takes a credential, and none shows it."""

import os
from dataclasses import replace

import pytest
import typer

from waterclock.cli.app import app
from waterclock.security.credential import Credential, pem_of


@pytest.fixture
def credential(tmp_path, monkeypatch):
    """Return a file with a credential for a node that is not there."""
    monkeypatch.setenv("WATERCLOCK_ADDRESS", "127.0.0.1:2")
    monkeypatch.delenv("WATERCLOCK_CREDENTIAL", raising=False)
    found = Credential("127.0.0.1:1", "https://127.0.0.1:1", pem_of(b"\x30\x03abc"), "se.cr.et")
    (tmp_path / "billing.credential").write_text(found.encode())
    return found, f"@{tmp_path}/billing.credential"


def commands(group: object, path: str = "") -> list[tuple[str, set[str]]]:
    """Return every command below a group, with its options."""
    found = []
    for name, command in getattr(group, "commands", {}).items():
        options = {option for each in command.params for option in each.opts}
        found += [(f"{path}{name}", options), *commands(command, f"{path}{name} ")]
    return found


def test_every_command_with_an_address_takes_a_credential():
    found = commands(typer.main.get_command(app))
    # A worker connects by its settings.
    found = [(name, options) for name, options in found if name != "worker"]
    with_address = [name for name, options in found if "--address" in options]

    assert [name for name, options in found if "--credential" in options] == with_address
    assert {"publish", "topics", "topics list", "pipeline ingest", "backup"} < set(with_address)


@pytest.mark.parametrize(
    "line", [["topics", "list"], ["topics"], ["receive", "chat"]], ids=["list", "topics", "receive"]
)
def test_a_credential_says_where_the_node_is_before_the_environment_does(
    waterclock, credential, line
):
    result = waterclock(*line, "--credential", credential[1])

    assert "no node answers at 127.0.0.1:1:" in result.stderr
    assert os.environ["WATERCLOCK_ADDRESS"] == "127.0.0.1:2"
    assert "WATERCLOCK_CREDENTIAL" not in os.environ


def test_a_credential_of_a_group_holds_for_its_commands(waterclock, credential):
    result = waterclock("topics", "--credential", credential[1], "list")

    assert "no node answers at 127.0.0.1:1:" in result.stderr


def test_an_address_that_is_typed_wins(waterclock, credential):
    result = waterclock("topics", "--credential", credential[1], "--address", "127.0.0.1:3")

    assert "no node answers at 127.0.0.1:3:" in result.stderr


def test_a_credential_may_be_typed_as_the_address(waterclock, credential):
    result = waterclock("topics", "--address", credential[0].encode())

    assert "no node answers at 127.0.0.1:1:" in result.stderr


def test_no_output_shows_the_token(waterclock, credential):
    known, _ = credential
    damaged = replace(known, http_address="nowhere").encode()
    for given in (
        ["--credential", known.encode()],
        ["--credential", damaged],
        ["--address", damaged],
        ["--credential", known.encode(), "--no-such"],
    ):
        result = waterclock("topics", *given)
        assert result.exit_code == 2
        assert known.token not in result.output + result.stderr
