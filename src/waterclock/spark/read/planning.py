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
    """Return where tasks reach nodes, as `http://host:port`, with commas if there are several: that
    which answers, and those it names."""
    found, node = first_answer(servers, credential, lambda client: client.node())
    server, scheme = found[0], "http" if credential is None else "https"
    known = Target(server, credential).http_address
    own = known or reachable_at(node.http_address, server, scheme=scheme)
    named = {each.address: each.http_address for each in node.nodes}
    others = [reachable_at(named[each], each, scheme=scheme) for each in found[1:] if each in named]
    return ",".join(dict.fromkeys([own, *others]))


def first_answer(
    servers: tuple[str, ...],
    credential: Credential | None,
    ask: "Callable[[BlockingClient], Answer]",
) -> tuple[list[str], Answer]:
    """Return the nodes that are known, the one that answers first, and what it answers."""
    from waterclock.client._sync.client import connect_blocking

    try:
        with connect_blocking(servers, credential=credential) as client:
            answer = ask(client)
            nodes = client._twin._connection.nodes
            return list(dict.fromkeys([nodes.current, *nodes.all])), answer
    except Unreachable as error:
        raise Unreachable(
            f"no Waterclock node answers at {', '.join(servers)}: start one with `waterclock up`, "
            f"or name another in the option servers"
        ) from error


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
