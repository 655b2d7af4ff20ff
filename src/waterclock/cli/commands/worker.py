"""`waterclock worker`: run a function on what a dispatcher hands out; see docs/dispatch.md.

Settings come from flags, the environment and a file, in that order. The leader is found through
Redis. Ctrl-C and SIGTERM let it finish what it has in flight.
"""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
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
from waterclock.cli.output.terminal import console, one_line, print_json

if TYPE_CHECKING:
    from waterclock.dispatch.config import WorkerConfig
    from waterclock.dispatch.worker.worker import Worker

AS_IT_IS = "none: messages as they are"


def worker(
    handler: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="What to call with each message.", show_default=AS_IT_IS
        ),
    ] = None,
    config_file: ConfigFile = None,
    redis: Redis = None,
    prefix: Prefix = None,
    output: Output = None,
    topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Write to this topic of a Waterclock node instead."),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(
            "--address", "-a", metavar="HOST:PORT[,...]", help="With --topic: where the node is.",
            show_default="127.0.0.1:9000",
        ),
    ] = None,
    credential: Annotated[
        str | None,
        typer.Option(metavar="TEXT|@FILE", help="As whom: what `waterclock secure add` printed."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", help="Messages worked on at a time.", show_default="8"),
    ] = None,
    is_insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure", help="Let in whoever reaches `listen`.", show_default="false"
        ),
    ] = None,
    settings: Settings = None,
    figures: Figures = None,
    is_verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Run a worker: call a function with each message, write what it returns."""
    require_redis("worker")
    from waterclock.dispatch.config import WorkerConfig, load_config
    from waterclock.dispatch.worker.handlers import load

    named = {
        "handler": handler, "redis": redis, "prefix": prefix, "output": output, "topic": topic,
        "servers": servers, "concurrency": concurrency, "is_insecure": is_insecure,
        "credential": credential,
        "sink": None if topic is None else "waterclock",
    }  # fmt: skip
    flags = flags_of(settings, named, section="worker", example="credit=500")
    config = load_config(
        WorkerConfig, yaml_text=file_text(config_file), environ=os.environ, flags=flags
    )
    begin_log(is_verbose=is_verbose)
    if config.handler:
        load(config.handler, folder=Path.cwd())  # a misspelt name fails before anything runs
    run_until_stopped(_run(config, as_json=as_json, figures_s=figures))


async def _run(config: "WorkerConfig", *, as_json: bool, figures_s: float | None) -> None:
    from waterclock.dispatch.process import run_worker

    async with asyncio.TaskGroup() as tasks:

        def ready(worker: "Worker") -> None:
            workers.append(worker)
            if not as_json:
                telling.append(tasks.create_task(_greet(config, worker)))
                return
            print_json({"pid": os.getpid(), "handler": config.handler, "sink": config.sink})
            if figures_s is not None:
                telling.append(tasks.create_task(tell_figures(lambda: _figures(worker), figures_s)))

        telling: list[asyncio.Task[None]] = []
        workers: list[Worker] = []
        try:
            await run_worker(config, on_ready=ready)
        finally:
            for task in telling:
                task.cancel()
    if as_json:
        return
    if abandoned := sum(worker.abandoned for worker in workers):
        said = f"Stopped; {abandoned:,} messages were not done in time, others get them."
    else:
        said = "Stopped; what was in flight is written and acknowledged."
    console().print(said)


async def _greet(config: "WorkerConfig", worker: "Worker") -> None:
    """Say that it works once it can: before that the log says what it waits for."""
    await worker.is_welcomed.wait()
    where = config.topic or config.output
    line = f"Worker is ready: {one_line(config.handler or AS_IT_IS)} to {one_line(where)}"
    console().print(line, style="bold")


def _figures(worker: "Worker") -> dict[str, object]:
    return {
        "epoch": worker.epoch, "is_connected": worker.is_connected, **asdict(worker.counts),
        "last_error": worker.failures.last_error,
    }  # fmt: skip
