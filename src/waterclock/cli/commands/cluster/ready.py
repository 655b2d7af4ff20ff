"""When the nodes of a local cluster know of each other, and what a person is told then."""

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from waterclock.cli.output.terminal import next_lines, program, table
from waterclock.client.settings import DEFAULT_PORT
from waterclock.model.errors import WaterclockError

FORM_S_MAX = 15.0
PAUSE_S = 0.1
ASK_S = 2.0


async def until_formed(http_addresses: Sequence[str], credential: Path | None) -> bool:
    """Return when every node has all of them on its ring; False if that takes too long."""
    try:
        async with asyncio.timeout(FORM_S_MAX):
            for address in http_addresses:
                await _until_joined(address, len(http_addresses), credential)
    except TimeoutError:
        return False
    return True


async def _until_joined(http_address: str, count: int, credential: Path | None) -> None:
    while True:
        if await _ring_size(http_address, credential) >= count:
            return
        await asyncio.sleep(PAUSE_S)


async def _ring_size(http_address: str, credential_file: Path | None) -> int:
    from waterclock.client.streams.http_pool import HttpPool
    from waterclock.client.streams.http_request import HttpRequest
    from waterclock.security.credential import Credential

    credential = None if credential_file is None else Credential.read(f"@{credential_file}")
    pool = HttpPool(http_address, connections_max=1, credential=credential)
    try:
        answer = await pool.ask(HttpRequest("GET", "/cluster/ring"), timeout_s=ASK_S)
    except WaterclockError:  # it was ready a moment ago: if it has ended, that is told elsewhere
        return 0
    finally:
        pool.close()
    return len(json.loads(answer.body)["nodes"]) if answer.status == 200 else 0


def tell_ready(
    out: Console, nodes: Sequence[Mapping[str, Any]], etcd: Mapping[str, Any] | None
) -> None:
    """Say where the nodes are, and what to type next."""
    lines = table(out, "name", "HTTP", "gRPC", "gossip", ">process")
    for node in nodes:
        lines.add_row(
            str(node["name"]),
            str(node["http_address"]),
            str(node["grpc_address"]),
            str(node["gossip_address"]),
            str(node["pid"]),
        )
    if etcd is not None:
        lines.add_row("etcd", "-", str(etcd["endpoint"]), "-", str(etcd["pid"]))
    out.print(lines)
    out.print()
    out.print("Type in another terminal (Ctrl-C here stops all nodes):", style="bold")
    next_lines(out, _lines(nodes, has_topics=etcd is not None))


def _lines(nodes: Sequence[Mapping[str, Any]], *, has_topics: bool) -> list[tuple[str, str]]:
    called = program()
    first, second, last = nodes[0], nodes[1], nodes[-1]
    lines = [] if not has_topics else [
        (f"{called} publish orders hello", "to a topic: kept by all nodes"),
        (
            f"{called} subscribe orders --from earliest --address {second['grpc_address']}",
            "from any of them",
        ),
        (f"{called} cluster status", "who leads, and how far the others are"),
    ]  # fmt: skip
    lines += [
        (f"{called} send greetings hello", f"through {first['name']}"),
        (
            f"{called} receive greetings --address {second['grpc_address']}",
            f"through {second['name']}: one stream, whoever is asked",
        ),
        (f"{called} cluster members", "who is there"),
        (f"{called} cluster ring", "who owns how much"),
        (f"kill -9 {last['pid']}", f"lose {last['name']}, and see it in the next"),
        (f"{called} cluster events --follow", "who came and went"),
    ]
    if first["grpc_port"] != DEFAULT_PORT:
        address = f"export WATERCLOCK_ADDRESS={first['grpc_address']}"
        lines.insert(0, (address, f"where {first['name']} is"))
    if first["is_secure"]:
        credential = shlex.quote(str(first["admin_credential"]))
        lines.insert(0, (f"export WATERCLOCK_CREDENTIAL=@{credential}", "be their admin"))
    return lines
