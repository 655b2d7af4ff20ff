"""Reads a page once, from top to bottom, as a person with a terminal and a notebook would.

It runs in the stranger's environment and imports nothing of the tests. Commands of a page share one
shell, programs one namespace; `await` may stand anywhere, as in a notebook. What a page says about
its commands is taken at its word:

    curl … # 424 title status      this status, and an answer with these fields; else any below 400
    … # Ctrl-C ends it             pressed once something was printed
    … # a terminal of its own      goes on until the page ends; ready once something was printed
    … # denied: why                fails
"""

import ast
import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from inspect import CO_COROUTINE
from pathlib import Path
from types import CodeType
from typing import Any

READY_S_MAX = 60.0
MARK = "-- the block has ended --"
CTRL_C = "Ctrl-C ends it"
DENIED = "denied"
OWN_TERMINAL = "a terminal of its own"
PRELUDE = f"""
set -euo pipefail
me() {{ {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@"; }}
curl() {{ command curl -sS --fail-with-body "$@"; }}
grpcurl() {{ me grpcurl "$@"; }}
"""
_COMMENT = re.compile(r"\s# (.*)$")


class Failed(Exception):
    """A block did not do what its page says."""


class Shell:
    """One shell for all commands of a page."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        self._said(PRELUDE)
        self._beside: list[int] = []

    def run(self, text: str, folder: Path) -> str:
        """Do what a block says; return what it prints."""
        printed = []
        for command in logical_lines(text):
            said = found[1] if (found := _COMMENT.search(command)) else ""
            if OWN_TERMINAL in said:
                self._start_beside(command, folder / f"terminal-{len(self._beside)}.txt")
                continue
            try:
                printed.append(self._said(translated(command, said)))
            except Failed as error:
                raise Failed(f"failed: {command}\n{error}") from None
        return "".join(printed)

    def folder(self) -> Path:
        """Return where the commands so far have led."""
        return Path(self._said("pwd").strip())

    def close(self) -> None:
        """End what still runs."""
        for pid in self._beside:
            self._said(f"kill {pid}; wait {pid}")
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait()

    def _said(self, command: str) -> str:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        # What it reads must not be the next command.
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null\necho '{MARK}'\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            if line.strip().endswith(MARK):
                return "".join([*lines, line.rstrip().removesuffix(MARK)])
            lines.append(line)
        raise Failed("".join(lines))

    def _start_beside(self, command: str, output: Path) -> None:
        output.write_text("")
        self._said(f"(exec {command}\n) >{shlex.quote(str(output))} 2>&1 &")
        self._beside.append(int(self._said("echo $!")))
        until = time.monotonic() + READY_S_MAX
        while not output.stat().st_size:
            if time.monotonic() > until:
                raise Failed(f"it says nothing: {command}")
            time.sleep(0.02)


def logical_lines(text: str) -> list[str]:
    """Return the commands of a block: lines, with those that go on below put together."""
    found: list[str] = []
    ahead = ""
    for line in text.splitlines():
        ahead += line
        if ahead.endswith("\\"):
            ahead = ahead[:-1]
            continue
        try:
            shlex.split(ahead, comments=True)
        except ValueError:  # a quote is open
            ahead += "\n"
            continue
        if ahead.strip() and not ahead.lstrip().startswith("#"):
            found.append(ahead)
        ahead = ""
    if ahead:
        raise Failed(f"does not end: {ahead}")
    return found


def translated(command: str, said: str) -> str:
    """Return what the shell is to do for a command that its page says something of."""
    if CTRL_C in said:
        return f"me ctrl_c {command}"
    if said.startswith(DENIED):
        return f"if {command}\nthen exit 1; fi"
    if command.startswith("curl ") and (found := re.match(r"(\d{3})\b ?(.*)", said)):
        return f"me answers {found[1]} {shlex.quote(found[2])} {command}"
    return command


def ctrl_c(*command: str) -> None:
    """Run a command that never ends; press Ctrl-C once it has printed a line, or an event."""
    awaited = "data: " if command[0] == "curl" else ""
    seen: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(line)
            if line.startswith(awaited):
                break
        process.send_signal(signal.SIGINT)
        seen.append(process.stdout.read())
    print("".join(seen), end="")
    if len(seen) < 2 or process.returncode not in (0, 130, -signal.SIGINT):
        sys.exit(f"it printed {len(seen) - 1} lines and ended with {process.returncode}")


def answers(status: str, fields: str, *command: str) -> None:
    """Run curl; see that the status is this one, and the answer has these fields."""
    out = ["-sS", "-w", "\n%{http_code}"]
    run = subprocess.run([*command, *out], stdout=subprocess.PIPE, text=True, check=True)
    body, _, got = run.stdout.rpartition("\n")
    print(body)
    has = list(json.loads(body)) if body and fields else []
    if got != status or has != fields.split():
        sys.exit(f"the page says {status} {fields}, it was {got} {' '.join(has)}")


def grpcurl(*arguments: str) -> None:
    """Call a method as grpcurl does: JSON in, JSON out."""
    import importlib

    import grpc
    from google.protobuf import json_format
    from google.protobuf.descriptor_pool import Default
    from google.protobuf.message_factory import GetMessageClass

    words = list(arguments)
    words.remove("-plaintext")
    data = words.pop(words.index("-d") + 1) if "-d" in words else "{}"
    address, path = (word for word in words if word != "-d")
    for name in ("broker", "scheduler", "admin", "write_registry", "backup"):
        importlib.import_module(f"waterclock.v1.{name}_pb2")
    service, _, name = path.partition("/")
    method = Default().FindServiceByName(service).methods_by_name[name]
    kind, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    sent = (text for text in (sys.stdin if data == "@" else [data]) if text.strip())
    with grpc.insecure_channel(address) as channel:
        # As a stream, also where both sides send one message: it is the same on the wire.
        call = channel.stream_stream(f"/{path}", kind.SerializeToString, answer.FromString)
        for message in call(json_format.Parse(text, kind()) for text in sent):
            print(json_format.MessageToJson(message), flush=True)


class Terminal(io.StringIO):
    """What a program prints; presses Ctrl-C at the first line if it is told to."""

    def __init__(self, *, is_impatient: bool) -> None:
        super().__init__()
        self._is_impatient = is_impatient

    def write(self, text: str) -> int:
        """Take text."""
        if self._is_impatient and "\n" in text:
            self._is_impatient = False
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def compiled(text: str, name: str) -> CodeType:
    """Compile a program, with `await` allowed anywhere."""
    code: CodeType = compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


def run_program(text: str, name: str, names: dict[str, Any], loop: asyncio.Runner) -> str:
    """Run a program; return what it prints."""
    terminal = Terminal(is_impatient=CTRL_C in text)
    with contextlib.redirect_stdout(terminal), contextlib.suppress(KeyboardInterrupt):
        code = compiled(text, name)
        result = eval(code, names)
        if code.co_flags & CO_COROUTINE:
            loop.run(result)
    return terminal.getvalue()


def read_page(page: dict[str, Any]) -> None:
    """Run its blocks; raise Failed at the first that does not do what the page says."""
    folder = Path.cwd()
    sys.path.insert(0, str(folder))
    names: dict[str, Any] = {"__name__": "__main__"}
    shell = Shell()
    with asyncio.Runner() as loop:
        for block in page["blocks"]:
            name = f"{page['name']}:{block['line']}"
            try:
                if block["kind"] == "sh":
                    printed = shell.run(block["text"], folder)
                    os.chdir(shell.folder())
                elif block["kind"] == "sql":
                    for statement in filter(str.strip, block["text"].split(";")):
                        names["spark"].sql(statement).show()
                    printed = ""
                else:
                    printed = run_program(block["text"], name, names, loop)
            except Failed as error:
                sys.exit(f"{name}: {error}")
            if block["printed"] is not None and printed != block["printed"]:
                sys.exit(f"{name} printed\n{printed}and the page says\n{block['printed']}")
            print(f"{name}\n{printed}")
    shell.close()


if __name__ == "__main__":
    # Whoever starts the tests in the background of a shell has it ignored, by all they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    match sys.argv[1:]:
        case ["ctrl_c", *command]:
            ctrl_c(*command)
        case ["answers", status, fields, *command]:
            answers(status, fields, *command)
        case ["grpcurl", *arguments]:
            grpcurl(*arguments)
        case [page]:
            read_page(json.loads(Path(page).read_text()))
