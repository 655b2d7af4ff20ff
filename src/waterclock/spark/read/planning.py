"""What a driver asks a node before a read is shared out: where the log stands, and where HTTP is.

This is the only part of reading that speaks gRPC, once: the address a user knows is that one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from waterclock.client.target import Target
from waterclock.model.errors import Unreachable
from waterclock.security.credential import Credential
from waterclock.spark.options import BadOption, OffsetBounds, ReadOptions
from waterclock.spark.read.http_node import HttpNode
from waterclock.spark.read.ranges import Extent, Range, chosen, resolved

if TYPE_CHECKING:
    from waterclock.client._sync.client import BlockingClient

Answer = TypeVar("Answer")

_ELSEWHERE = {"", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1"}
"""Hosts that mean something else on another machine."""


def http_address(servers: tuple[str, ...], credential: Credential | None) -> str:
    """Return where tasks reach the node, as `http://host:port`: of the first that answers."""
    server, node = first_answer(servers, credential, lambda client: client.node())
    if credential is None:
        return reachable_at(node.http_address, server)
    known = Target(server, credential).http_address
    return known or reachable_at(node.http_address, server, scheme="https")


def first_answer(
    servers: tuple[str, ...],
    credential: Credential | None,
    ask: "Callable[[BlockingClient], Answer]",
) -> tuple[str, Answer]:
    """Return the first node that can be reached, and what it answers."""
    from waterclock.client._sync.client import connect_blocking

    unreachable: Unreachable | None = None
    for server in servers:
        try:
            with connect_blocking(server, credential=credential) as client:
                return server, ask(client)
        except Unreachable as error:
            unreachable = error
    assert unreachable is not None
    raise Unreachable(
        f"no Waterclock node answers at {', '.join(servers)}: start one with `waterclock up`, or "
        f"name another in the option servers"
    ) from unreachable


def reachable_at(http_address_of_node: str, server: str, *, scheme: str = "http") -> str:
    """Return a node's HTTP address for others: its own host if that means the same everywhere,
    otherwise the one it was found at."""
    parts = urlsplit(http_address_of_node)
    host = server.rpartition(":")[0] if (parts.hostname or "") in _ELSEWHERE else parts.hostname
    assert host is not None
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{scheme}://{host}:{parts.port}"


def bounds(options: ReadOptions, node: HttpNode) -> tuple[list[Range], dict[int, Extent]]:
    """Return the offsets of a batch read, partition by partition, and what the log has."""
    wanted = options.partitions
    extents = chosen(node.ends(options.topic, needed=wanted), wanted)
    starts = starts_of(options, node, extents)
    ends = _places(options.ending, "ending", options, node, extents)
    for partition, start in starts.items():
        if ends[partition] < start and _is_by_offset(options):
            raise BadOption(
                "endingOffsets", f"partition {partition} ends at {ends[partition]}, before {start}"
            )
    return [Range(each, start, max(start, ends[each])) for each, start in starts.items()], extents


def starts_of(options: ReadOptions, node: HttpNode, extents: dict[int, Extent]) -> dict[int, int]:
    """Return where a read begins in each partition."""
    return _places(options.starting, "starting", options, node, extents)


def _places(
    place: OffsetBounds | int,
    side: str,
    options: ReadOptions,
    node: HttpNode,
    extents: dict[int, Extent],
) -> dict[int, int]:
    if isinstance(place, OffsetBounds):
        is_strict = options.fail_on_data_loss
        return resolved(place, extents, f"{side}Offsets", is_strict=is_strict)
    found = node.offsets_at(options.topic, place)
    return {
        partition: min(max(found.get(partition, extent.end), extent.start), extent.end)
        for partition, extent in extents.items()
    }


def _is_by_offset(options: ReadOptions) -> bool:
    return isinstance(options.starting, OffsetBounds) and isinstance(options.ending, OffsetBounds)
