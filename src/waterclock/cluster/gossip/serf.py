"""What Serf adds to memberlist, as far as its agents must understand our nodes.

Tags are the node's metadata: 0xFF and a msgpack map. Before a node leaves it sends the leave intent
as a user message; an agent that has not seen one shows a node that left as failed.

The six version bytes of a node say who can speak with whom: the least, the greatest and the current
version of memberlist's protocol, then of Serf's. A push/pull is merged only if everyone in it and
everyone known can speak with each other. One node that cannot would so keep all others from
merging; therefore it is not admitted by news either.
"""

from collections.abc import Collection, Iterable, Mapping

from waterclock.cluster.gossip.errors import BadPacket
from waterclock.cluster.gossip.messages import META_BYTES_MAX, User, pack, unpack
from waterclock.cluster.gossip.streams import NodeState, State
from waterclock.model.errors import LimitExceeded

VERSIONS = bytes((1, 5, 2, 2, 5, 4))
"""Ours."""
VERSION_COUNT = 6

_TAGS = b"\xff"
_LEAVE = b"\x00"


def encode_tags(tags: Mapping[str, str]) -> bytes:
    """Return tags as metadata; raise LimitExceeded if they have more than 512 bytes."""
    found = _TAGS + pack(dict(tags)) if tags else b""
    if len(found) > META_BYTES_MAX:
        raise LimitExceeded("tags", META_BYTES_MAX, got=len(found), meaning="bytes as encoded")
    return found


def decode_tags(meta: bytes) -> dict[str, str]:
    """Return the tags in metadata; as Serf does, anything else is taken for the tag `role`."""
    try:
        if meta[:1] != _TAGS:
            return {"role": meta.decode()} if meta else {}
        value = unpack(meta[1:])
        if not isinstance(value, dict):
            raise BadPacket("tags that are no map")
        return {_text(key): _text(item) for key, item in value.items()}
    except UnicodeDecodeError as error:
        raise BadPacket("tags that are not UTF-8") from error


def leave_intent(node: str, *, time: int) -> User:
    """Return what is sent before a node leaves; `time` is above that of any earlier one."""
    return User(_LEAVE + pack({"LTime": time, "Node": node, "Prune": False}))


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise BadPacket("tags that are no texts")
    return value.decode()


def is_understood(versions: bytes) -> bool:
    """Say whether a node of these versions and we can speak with each other."""
    if versions == VERSIONS:
        return True
    if len(versions) != VERSION_COUNT or not 0 < versions[0] <= versions[1]:
        return False
    return all(
        least <= ours <= most and our_least <= theirs <= our_most
        for (least, most, theirs), (our_least, our_most, ours) in (
            (versions[:3], VERSIONS[:3]),
            (versions[3:], VERSIONS[3:]),
        )
    )


def mismatch(remote: Iterable[NodeState], local: Iterable[NodeState]) -> str | None:
    """Return why these nodes cannot all speak with each other, None if they can."""
    # Nearly always everyone is the same, and then one of each is enough.
    distinct: dict[tuple[bytes, bool], str] = {}
    for states in (remote, local):
        for state in states:
            distinct.setdefault((state.versions, state.state == State.ALIVE), state.name)
    alive = [known for (known, is_alive) in distinct if is_alive and len(known) >= VERSION_COUNT]
    for first, what in ((0, "protocol"), (3, "delegate protocol")):
        least, most = _common(alive, first)
        for (versions, _), name in distinct.items():
            current = versions[first + 2] if len(versions) >= VERSION_COUNT else 0
            if not least <= current <= most:
                return f"{name} speaks {what} {current}, which is not in [{least}, {most}]"
    return None


def _common(alive: Collection[bytes], first: int) -> tuple[int, int]:
    least = max((versions[first] for versions in alive), default=0)
    return least, min((versions[first + 1] for versions in alive), default=255)
