"""What the shell has to do for gossip, and what it tells of members, in this order."""

from typing import NamedTuple, TypeAlias

from waterclock.cluster.gossip.messages import Address, Ping
from waterclock.cluster.gossip.serf import decode_tags
from waterclock.cluster.gossip.streams import PushPull, State


class Member(NamedTuple):
    """A node as it was known at one moment."""

    name: str
    address: Address
    meta: bytes
    incarnation: int
    state: State

    @property
    def tags(self) -> dict[str, str]:
        """What the node says of itself; raise BadPacket if it speaks otherwise than Serf."""
        return decode_tags(self.meta)


class SendPacket(NamedTuple):
    """Send a datagram; if there is a keyring, seal it first."""

    address: Address
    payload: bytes


class OpenPushPull(NamedTuple):
    """Send the state over TCP; give the answer to `push_pull_answered`."""

    address: Address
    state: PushPull


class OpenStreamPing(NamedTuple):
    """Ping over TCP; if an ack comes before the deadline, call `stream_acked`."""

    address: Address
    ping: Ping
    deadline_ms: int


class Joined(NamedTuple):
    """A node is there: it is new, or was taken for dead."""

    member: Member


class Updated(NamedTuple):
    """A node says something else of itself."""

    member: Member


class Left(NamedTuple):
    """A node said that it goes."""

    member: Member


class Failed(NamedTuple):
    """A node is taken for dead."""

    member: Member


class Conflicted(NamedTuple):
    """Another node claims the name of a member: names must be unique."""

    member: Member
    address: Address


class MergeRefused(NamedTuple):
    """A push/pull was ignored: its nodes and ours do not speak the same versions."""

    reason: str


class PacketsBlocked(NamedTuple):
    """A node answers over TCP but not over UDP: the network lets one pass and not the other."""

    member: Member


MemberEvent: TypeAlias = (
    Joined | Updated | Left | Failed | Conflicted | MergeRefused | PacketsBlocked
)
Effect: TypeAlias = SendPacket | OpenPushPull | OpenStreamPing | MemberEvent
