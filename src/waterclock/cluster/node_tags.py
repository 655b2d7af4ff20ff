"""What a node says of itself to the others: the tags that gossip carries (those of Serf's members).

    wc        its release level: what it understands of other nodes
    cluster   the name of its cluster
    http      where clients reach it, as a URL
    grpc      the port at which the same host has gRPC; nodes of older releases do not say
    peer      `host:port` for other nodes
    zone      where it is; may be empty
    points    of each node on its hash ring
    state     `up`, or `leaving` while it hands over what it has

Members without these are no nodes of ours, such as plain agents of Serf.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

LEVEL: Final = 1
UP: Final = "up"
LEAVING: Final = "leaving"


class NodeTags(NamedTuple):
    """What one node says; what is not here, as of a later release, is passed over."""

    cluster: str
    http: str
    peer_host: str
    peer_port: int
    points: int
    zone: str = ""
    state: str = UP
    level: int = LEVEL
    grpc_port: int = 0
    """0: it does not say."""

    @property
    def grpc(self) -> str:
        """`host:port` for clients; empty if it does not say."""
        host = self.http.rpartition("//")[2].rpartition(":")[0]
        return f"{host}:{self.grpc_port}" if host and self.grpc_port else ""

    @property
    def peer(self) -> str:
        """`host:port`, with the brackets that IPv6 needs."""
        host = f"[{self.peer_host}]" if ":" in self.peer_host else self.peer_host
        return f"{host}:{self.peer_port}"

    def encode(self) -> dict[str, str]:
        """Return the tags as gossip takes them."""
        tags = {
            "wc": str(self.level),
            "cluster": self.cluster,
            "http": self.http,
            "peer": self.peer,
            "zone": self.zone,
            "points": str(self.points),
            "state": self.state,
        }
        return tags | {"grpc": str(self.grpc_port)} if self.grpc_port else tags

    def why_apart(self, other: "NodeTags") -> str:
        """Return why another node can share no streams with this one; nothing if it can."""
        if other.cluster != self.cluster:
            return f"it is of cluster {other.cluster!r}, and this node of {self.cluster!r}"
        if other.points != self.points:
            return f"hash_ring.virtual_nodes is {other.points} there and {self.points} here"
        return ""


def decode_tags(tags: Mapping[str, str]) -> NodeTags | None:
    """Return what a member says of itself as a node; None if it is none of ours."""
    host, _, port = tags.get("peer", "").rpartition(":")
    numbers = (port, tags.get("wc", ""), tags.get("points", ""))
    is_whole = tags.keys() >= {"cluster", "http", "state"} and bool(host)
    # More digits are no port, and no level that anybody means.
    if not is_whole or not all(each.isascii() and each.isdigit() for each in numbers):
        return None
    if max(map(len, numbers)) > 5 or not 0 < int(port) <= 65_535:
        return None
    return NodeTags(
        cluster=tags["cluster"],
        http=tags["http"],
        peer_host=host.removeprefix("[").removesuffix("]"),
        peer_port=int(port),
        points=int(tags["points"]),
        zone=tags.get("zone", ""),
        state=tags["state"],
        level=int(tags["wc"]),
        grpc_port=_port(tags.get("grpc", "")),
    )


def _port(text: str) -> int:
    """Return a port that a client may be told; 0 if it is none."""
    is_number = text.isascii() and text.isdigit() and len(text) <= 5
    return int(text) if is_number and int(text) <= 65_535 else 0
