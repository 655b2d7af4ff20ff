"""`waterclock up`: run a node until it is stopped.

Settings come from flags, the environment and a file, in that order (docs/configuration.md). When
the node takes requests it says where, and what to type next; with `--json` that is one line, for
programs that start nodes on port 0 and need to know what they got. Ctrl-C and SIGTERM stop it in
good order, a second Ctrl-C at once; what was acknowledged is safe either way. SIGHUP has the
settings read again. With `--processes` all cores of this machine are used (`processes/`), with
`--nodes` it is a whole cluster on this machine (`cluster/local.py`).
"""

import asyncio
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import waterclock
from waterclock.cli.daemon import ConfigFile, Verbose, file_text, flags_of
from waterclock.cli.output.terminal import print_json, program
from waterclock.model.errors import BadConfig, BadInput, FolderInUse, StorageFailed
from waterclock.runtime.structured_log import begin_log

if TYPE_CHECKING:
    from waterclock.model.config import Config
    from waterclock.server.addresses import Addresses

DEFAULT_PORT = 9000
NODES_MIN, NODES_MAX = 2, 9
SHARED = Path("processes", "journal")
"""What the folder of several processes has, and that of no other node."""
_PORT_HINTS = {
    "cluster.grpc_port": "another node may be running; choose another port with --grpc-port",
    "cluster.http_port": "choose another port with --http-port",
    "cluster.process_http_port": "choose another port with --set cluster.process_http_port=N",
    "cluster.gossip_port": "choose another port with --set cluster.gossip_port=N",
    "cluster.peer_port": "choose another port with --set cluster.peer_port=N",
}

Nodes = Annotated[
    int | None,
    typer.Option(
        min=NODES_MIN,
        max=NODES_MAX,
        metavar="N",
        help="Run a cluster of so many nodes on this machine, on ports that follow each other.",
        show_default="one node",
    ),
]

Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Let other machines in without credentials (server.host)."),
]

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting, as in --set log.fsync=always."),
]

Processes = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Run so many processes by one address and share everything out among them; `auto`:"
        " one on each core.",
        show_default="one, without a parent",
    ),
]

Topics = Annotated[
    bool | None,
    typer.Option(
        "--topics/--no-topics",
        help="With --nodes: have topics, which need an etcd, started if it is on the path.",
        show_default="if there is one",
    ),
]


def up(
    config_file: ConfigFile = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the node keeps its data.", show_default="waterclock-data"
        ),
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(metavar="N", help="Port for gRPC; 0 takes a free one.", show_default="9000"),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(metavar="N", help="Port for HTTP; 0 takes a free one.", show_default="8080"),
    ] = None,
    processes: Processes = None,
    nodes: Nodes = None,
    has_topics: Topics = None,
    is_insecure: Insecure = False,
    settings: Settings = None,
    is_verbose: Verbose = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print one line of JSON with the ports.")
    ] = False,
) -> None:
    """Run a node: gRPC for publishing, consuming and scheduling, HTTP for streams and metrics; on
    all cores, with --processes; or a cluster on this machine, with --nodes."""
    from waterclock.model.config import load_config

    named = {
        "node.data_folder": None if data is None else str(data),
        "cluster.grpc_port": grpc_port,
        "cluster.http_port": http_port,
        "server.insecure": True if is_insecure else None,
        "log.level": "info" if is_verbose else None,
    }
    flags = flags_of(settings, named, example="log.fsync=always")

    def read_config() -> "Config":
        return load_config(yaml_text=file_text(config_file), environ=os.environ, flags=flags)

    config = read_config()
    given = _options(config_file, settings, is_insecure=is_insecure, is_verbose=is_verbose)
    if processes is not None:
        if nodes is not None:
            raise BadInput("--processes and --nodes are two things: choose one")
        _run_processes(config, processes, given, as_json=as_json)
        return
    if nodes is not None:
        _run_cluster(config, nodes, given, has_topics=has_topics, as_json=as_json)
        return
    _check_folder(config)
    begin_log(level=config.log.level, format=config.log.format)
    _make_folder(Path(config.node.data_folder))
    with ExitStack() as starting:
        starting.enter_context(_starting())
        _Run(config, starting, as_json=as_json).until_stopped(read_config)


def _run_cluster(
    config: "Config", nodes: int, given: list[str], *, has_topics: bool | None, as_json: bool
) -> None:
    from waterclock.cli.commands.cluster.local import run_local_cluster

    with _hinting():
        run_local_cluster(config, nodes, given, has_topics=has_topics, as_json=as_json)


def _run_processes(config: "Config", wanted: str, given: list[str], *, as_json: bool) -> None:
    from waterclock.cli.commands.processes.plan import check_alone, count_of
    from waterclock.cli.commands.processes.supervisor import run_processes
    from waterclock.server.exposure import check_exposure

    count = count_of(wanted)
    check_alone(config)
    check_exposure(config)
    begin_log(level=config.log.level, format=config.log.format)
    with _hinting():
        run_processes(config, count, given, as_json=as_json)


class _Run:
    """One run of a node, printed as it goes."""

    def __init__(self, config: "Config", starting: ExitStack, *, as_json: bool) -> None:
        self._config = config
        self._starting = starting
        """What is shown meanwhile."""
        self._as_json = as_json
        self._stopping_at: float | None = None

    def until_stopped(self, reread: Callable[[], "Config"]) -> None:
        """Run the node."""
        import uvloop

        from waterclock.server.process import run_node

        with _hinting(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                run_node(
                    self._config,
                    on_ready=self._ready,
                    on_stopping=self._stopping,
                    reread=reread,
                )
            )
        self._stopped()

    def _ready(self, addresses: "Addresses") -> None:
        self._starting.close()
        if self._as_json:
            print_json(plain(self._config, addresses))
        else:
            tell_ready(self._config, addresses)

    def _stopping(self) -> None:
        self._stopping_at = time.monotonic()
        if not self._as_json:
            drain_s = self._config.server.drain_ms / 1_000
            typer.secho(
                f"\nStopping: calls have up to {drain_s:g} s to finish, then timers and progress"
                " are saved. Ctrl-C again ends it at once.",
                fg="yellow",
            )

    def _stopped(self) -> None:
        if not self._as_json and self._stopping_at is not None:
            seconds = time.monotonic() - self._stopping_at
            typer.secho(f"Stopped in {seconds:.1f} s; everything is on disk.", fg="green")


# Settings


def _options(
    config_file: Path | None, settings: Sequence[str] | None, *, is_insecure: bool, is_verbose: bool
) -> list[str]:
    """Return what was typed that holds for every node of a cluster."""
    words = [] if config_file is None else ["--config", str(config_file)]
    words += [word for each in settings or () for word in ("--set", each)]
    return words + ["--insecure"] * is_insecure + ["--verbose"] * is_verbose


def _check_folder(config: "Config") -> None:
    """Raise BadConfig if the folder is that of several processes, and this is none of them."""
    folder = Path(config.node.data_folder)
    if config.cluster.coordinator_fd is None and (folder / SHARED).exists():
        raise BadConfig(
            "node.data_folder", f"{folder} is shared by processes: start it with --processes"
        )


def _make_folder(folder: Path) -> None:
    from waterclock.storage.folders.os_folder import make_folders

    try:
        make_folders(folder.absolute())
    except OSError as error:
        raise StorageFailed(
            f"cannot make {folder} ({error.strerror}): choose another with --data FOLDER"
        ) from error


@contextmanager
def _hinting() -> Iterator[None]:
    """Say of errors that keep a node from starting which flag helps."""
    try:
        yield
    except BadConfig as error:
        hint = _PORT_HINTS.get(error.field)
        if hint is None:
            raise
        raise BadConfig(error.field, f"{error.problem}; {hint}") from error
    except FolderInUse as error:
        raise FolderInUse(f"{error}, with --data FOLDER") from error


# What it says of itself


def plain(config: "Config", addresses: "Addresses") -> dict[str, object]:
    """Return what a program needs to know of a node that it started."""
    return {
        "name": config.node.name or socket.gethostname(),
        "version": waterclock.__version__,
        "pid": os.getpid(),
        "grpc_address": addresses.grpc,
        "grpc_port": addresses.grpc_port,
        "http_address": addresses.http,
        "http_port": addresses.http_port,
        "data_folder": str(Path(config.node.data_folder).absolute()),
        **({"own_http_address": addresses.alone.http} if addresses.own_http_port else {}),
        "is_secure": addresses.is_secure,
        **({"admin_credential": str(_admin_credential(config))} if addresses.is_secure else {}),
    }


@contextmanager
def _starting() -> Iterator[None]:
    """Show on stderr, if it is a terminal, that the node is starting; its log may be long."""
    if not sys.stderr.isatty():
        yield
        return
    print("starting", end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(" " * len("starting"), end="\r", file=sys.stderr, flush=True)


def tell_ready(config: "Config", addresses: "Addresses") -> None:
    """Say that the node is there, where, and what to type next: without Rich, for which those who
    wait for the node would wait as well."""
    name = config.node.name or socket.gethostname()
    typer.secho(f"Waterclock {waterclock.__version__}: node {name} is ready", bold=True)
    facts = [
        ("gRPC", addresses.grpc),
        ("HTTP", addresses.http),
        ("data", str(Path(config.node.data_folder).absolute())),
        *([("cluster", config.cluster.name)] if config.cluster.is_clustered else ()),
    ]
    width = max(len(what) for what, _ in facts)
    for what, where in facts:
        typer.echo(f"{typer.style(f'   {what:<{width}}', dim=True)}  {where}")
    typer.echo()
    typer.secho("Type in another terminal (Ctrl-C here stops the node):", bold=True)
    lines = _lines(config, addresses)
    width = max(len(line) for line, _ in lines)
    for line, why in lines:
        shown = typer.style(f"   {line:<{width}}  ", fg="cyan")
        typer.echo(f"{shown}{typer.style(f'# {why}', dim=True)}")
    sys.stdout.flush()


def _admin_credential(config: "Config") -> Path:
    from waterclock.security.folder import folder_of

    return folder_of(config).admin_credential.absolute()


def _lines(config: "Config", addresses: "Addresses") -> list[tuple[str, str]]:
    called = program()
    lines = [
        (f"{called} publish orders 'hello'", "publish a message"),
        (f"{called} publish orders 'later' --at +30s", "publish one for later"),
        (f"{called} schedule list orders", "what is still to come"),
        (f"{called} subscribe orders --from earliest", "see them come"),
    ]
    if config.cluster.is_clustered:  # which has streams and no topics
        lines = [
            (f"{called} cluster members", "who is there"),
            (f"{called} send greetings 'hello'", "send a message, whoever owns the stream"),
            (f"{called} receive greetings", "see it come, here or at another node"),
        ]
    if addresses.grpc_port != DEFAULT_PORT:
        lines.insert(0, (f"export WATERCLOCK_ADDRESS={addresses.grpc}", "where this node is"))
    curl = "curl"
    if addresses.is_secure:
        credential = _admin_credential(config)
        file, ca = (shlex.quote(str(each)) for each in (credential, credential.with_name("ca.pem")))
        lines.insert(0, (f"export WATERCLOCK_CREDENTIAL=@{file}", "be its admin"))
        curl = f'curl --cacert {ca} -H "Authorization: Bearer $(cat {file})"'
    lines.append((f"{curl} {addresses.http}/metrics", "how it is doing; a browser shows it at /"))
    return lines
