"""`waterclock dispatch`: run a dispatcher, which leads or stands by; see docs/dispatch.md.

Settings come from flags, the environment and a file, in that order. Start as many as you like: one
of them leads, the others take over when it is gone.
"""

import asyncio
import os
import socket
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.daemon import (
    AsJson,
    ConfigFile,
    Figures,
    Output,
    Prefix,
    Redis,
    Settings,
    Verbose,
    begin_log,
    file_text,
    flags_of,
    require_redis,
    run_until_stopped,
    tell_figures,
)
from waterclock.cli.output.terminal import console, next_lines, one_line, print_json, program

if TYPE_CHECKING:
    from waterclock.dispatch.config import DispatcherConfig
    from waterclock.dispatch.dispatcher import Dispatcher

LOOK_S = 0.2
"""How often it is looked whether we lead."""


def dispatch(
    config_file: ConfigFile = None,
    redis: Redis = None,
    prefix: Prefix = None,
    source_kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Where messages come from: stream or pubsub.",
            show_default="stream",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="The stream, or the channel.", show_default="messages"
        ),
    ] = None,
    output: Output = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Listen here for workers.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="N", help="And at this port; 0 takes one.", show_default="7710"),
    ] = None,
    secure: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Ask workers for credentials of this secure folder."),
    ] = None,
    is_insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Let in whoever reaches --host.", show_default="false"),
    ] = None,
    settings: Settings = None,
    figures: Figures = None,
    is_verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Run a dispatcher: messages of Redis, handed to workers, each written once."""
    require_redis("dispatch")
    from waterclock.dispatch.config import DispatcherConfig, load_config

    named = {
        "redis": redis, "prefix": prefix, "source_kind": source_kind, "source": source,
        "output": output, "host": host, "port": port, "secure": secure,
        "is_insecure": is_insecure,
    }  # fmt: skip
    flags = flags_of(settings, named, section="dispatch", example="lease=3s")
    config = load_config(
        DispatcherConfig, yaml_text=file_text(config_file), environ=os.environ, flags=flags
    )
    begin_log(is_verbose=is_verbose)
    run_until_stopped(_run(config, as_json=as_json, figures_s=figures))


async def _run(config: "DispatcherConfig", *, as_json: bool, figures_s: float | None) -> None:
    await _Run(config, as_json=as_json, figures_s=figures_s).until_stopped()


class _Run:
    """One life of a dispatcher, told as it goes."""

    def __init__(
        self, config: "DispatcherConfig", *, as_json: bool, figures_s: float | None
    ) -> None:
        self._config = config
        self._as_json = as_json
        self._figures_s = figures_s
        self._out = console()
        self._dispatcher: asyncio.Future[Dispatcher] = asyncio.Future()

    async def until_stopped(self) -> None:
        from waterclock.dispatch.process import run_dispatcher

        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell())
            try:
                await run_dispatcher(self._config, on_ready=self._ready)
            finally:
                telling.cancel()
        if not self._as_json:
            self._out.print("Stopped; what was not acknowledged is handed out by the next leader.")

    def _ready(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher.set_result(dispatcher)
        if self._as_json:
            print_json(self._plain(dispatcher))

    def _greet(self, dispatcher: "Dispatcher") -> None:
        from waterclock.dispatch.redis.link import without_password

        host, port = dispatcher.address
        where = map(without_password, self._config.redis)
        self._out.print(
            f"Dispatcher {socket.gethostname()} is ready: {self._config.source_kind}"
            f" {one_line(self._config.source)} of {one_line(', '.join(where))},"
            f" workers at {host}:{port}",
            style="bold",
        )
        self._out.print("Type in another terminal (Ctrl-C here stops it):")
        next_lines(
            self._out,
            [
                (f"{program()} worker --handler my_module:handle", "a worker; start several"),
                (f"{program()} dispatch --port 0", "a standby"),
            ],
        )

    def _plain(self, dispatcher: "Dispatcher") -> dict[str, object]:
        host, port = dispatcher.address
        return {
            "pid": os.getpid(), "host": host, "port": port, "prefix": self._config.prefix,
            "source_kind": self._config.source_kind, "source": self._config.source,
            "output": self._config.output,
        }  # fmt: skip

    async def _tell(self) -> None:
        """Say who leads, or all the figures, until cancelled."""
        dispatcher = await self._dispatcher
        if self._as_json and self._figures_s is not None:
            await tell_figures(partial(_figures, dispatcher), self._figures_s)
        # Before that the log says what it waits for.
        await dispatcher.has_redis.wait()
        if not self._as_json:
            self._greet(dispatcher)
        epoch = -1
        while True:
            if dispatcher.epoch != epoch:
                epoch = dispatcher.epoch
                if not self._as_json:
                    said = f"Leads, epoch {epoch}." if epoch else "Stands by."
                    self._out.print(said, style="green" if epoch else "yellow")
            await asyncio.sleep(LOOK_S)


def _figures(dispatcher: "Dispatcher") -> dict[str, object]:
    return {
        "epoch": dispatcher.epoch, "workers": dispatcher.workers, "queued": dispatcher.queued,
        "pending": dispatcher.pending, **asdict(dispatcher.counts),
    }  # fmt: skip
