"""What the commands share that run until they are told to stop (`up`, `dispatch`, `worker`): where
their settings come from, their log, and the loop they run on.

With `--json` each tells on stdout that it runs, in one line; dispatchers and workers tell with
`--figures` what they have done, in one line every so often.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from waterclock.cli.output.terminal import print_json
from waterclock.model.errors import BadConfig, BadInput, WaterclockError
from waterclock.runtime import structured_log
from waterclock.runtime.lifecycle import first_error

ONE_LINE = (WaterclockError, OSError)
"""Errors that end a program with one line on stderr."""

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings, as YAML.")
]
Redis = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESSES", help="Where Redis is: host:port or a URL, or several with commas.",
        show_default="127.0.0.1:6379",
    ),
]  # fmt: skip
Prefix = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Of all keys of ours; a group of dispatchers has one.",
        show_default="waterclock",
    ),
]  # fmt: skip
Output = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="The stream that workers write to.", show_default="processed"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting, as in --set lease=3s."),
]
Figures = Annotated[
    float | None,
    typer.Option(
        min=0.05, metavar="SECONDS", help="With --json: print a line of figures so often."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens, to stderr.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="When it runs, print one line of JSON about it.")
]
_NO_REDIS = "what it needs is not installed: pip install 'waterclock[redis]'"


def flags_of(
    settings: Sequence[str] | None,
    named: Mapping[str, object],
    *,
    section: str = "",
    example: str,
) -> dict[str, object]:
    """Return what was set on the command line, by dotted name. With a section, `--set lease=3s`
    means its own, and so do the names of options."""

    def dotted(name: str) -> str:
        return f"{section}.{name}" if section and "." not in name else name

    flags: dict[str, object] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"--set {text!r} is not of the form name=value, as in {example}")
        flags[dotted(name.strip())] = value.strip()
    return flags | {dotted(name): value for name, value in named.items() if value is not None}


def file_text(file: Path | None) -> str | None:
    """Return what the file of settings says."""
    if file is None:
        return None
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise BadInput(f"--config {file}: {reason}; name a YAML file") from error


def begin_log(*, is_verbose: bool) -> None:
    """Let the log go to stderr: what is amiss, or everything."""
    structured_log.begin_log(level="info" if is_verbose else "warning")


def require_redis(section: str) -> None:
    """Raise BadConfig if the packages are missing that speak to Redis."""
    try:
        import hiredis  # noqa: F401
    except ImportError as error:
        raise BadConfig(section, _NO_REDIS) from error


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run a dispatcher or a worker on the fastest loop there is; raise what ended it."""
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
    except ExceptionGroup as problems:
        raise first_error(problems, ONE_LINE) from problems


async def tell_figures(figures: Callable[[], dict[str, object]], every_s: float) -> None:
    """Print figures again and again, until cancelled."""
    pid = os.getpid()
    while True:
        print_json({"pid": pid, **figures()})
        await asyncio.sleep(every_s)
