"""What a person is told when all processes are ready."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import waterclock
from waterclock.cli.output.terminal import next_lines, program, table
from waterclock.client.settings import DEFAULT_PORT

if TYPE_CHECKING:
    from waterclock.model.config import Config


def tell_ready(out: Console, config: "Config", processes: Sequence[Mapping[str, Any]]) -> None:
    """Say where they are, and what to type next."""
    first = processes[0]
    count = "1 process is" if len(processes) == 1 else f"{len(processes)} processes are"
    out.print(f"Waterclock {waterclock.__version__}: {count} ready", style="bold")
    facts = table(out, "", "")
    facts.show_header = False
    facts.add_row("gRPC", str(first["grpc_address"]))
    facts.add_row("HTTP", str(first["http_address"]))
    facts.add_row("data", str(Path(config.node.data_folder).absolute()))
    out.print(facts)
    lines = table(out, "name", "HTTP of its own, for metrics", ">process")
    for each in processes:
        lines.add_row(str(each["name"]), str(each["own_http_address"]), str(each["pid"]))
    out.print(lines)
    out.print()
    out.print("Type in another terminal (Ctrl-C here stops all processes):", style="bold")
    next_lines(out, _lines(first))


def _lines(first: Mapping[str, Any]) -> list[tuple[str, str]]:
    called = program()
    lines = [
        (f"{called} publish orders 'hello'", "publish a message"),
        (f"{called} subscribe orders --from earliest", "see it come"),
        (f"{called} cluster status", "which process leads what"),
        (f"kill -9 {first['pid']}", "lose a process, and see it come back"),
    ]
    if first["grpc_port"] != DEFAULT_PORT:
        lines.insert(0, (f"export WATERCLOCK_ADDRESS={first['grpc_address']}", "where they are"))
    if first["is_secure"]:
        credential = shlex.quote(str(first["admin_credential"]))
        lines.insert(0, (f"export WATERCLOCK_CREDENTIAL=@{credential}", "be their admin"))
    return lines
