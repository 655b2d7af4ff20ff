"""Lines to type name the program as it can be called from here."""

import io
import sys

from rich.console import Console

from waterclock.cli.output.terminal import next_lines, program


def test_the_program_is_named_as_it_can_be_called(monkeypatch, tmp_path):
    command = tmp_path / "waterclock"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)

    monkeypatch.setattr(sys, "argv", [str(command)])
    assert program() == str(command)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "waterclock"
    monkeypatch.setattr(sys, "argv", ["/x/__main__.py"])
    assert program().endswith("-m waterclock")


def test_what_lines_are_for_stands_in_a_column():
    out = Console(file=io.StringIO(), width=80)

    with out.capture() as said:
        next_lines(out, [("up", "start"), ("publish x", "send")])

    assert said.get() == "   up         # start\n   publish x  # send\n"
