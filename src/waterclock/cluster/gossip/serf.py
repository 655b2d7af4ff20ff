"""What Serf adds to memberlist, as far as its agents must understand our nodes.

Tags are the node's metadata: 0xFF and a msgpack map. Before a node leaves it sends the leave intent
as a user message; an agent that has not seen one shows a node that left as failed.
"""

from collections.abc import Mapping

from waterclock.cluster.gossip.errors import BadPacket
from waterclock.cluster.gossip.messages import META_BYTES_MAX, User, pack, unpack
from waterclock.model.errors import LimitExceeded

VERSIONS = bytes((1, 5, 2, 2, 5, 4))
"""Least, greatest and current version of memberlist's protocol, then of Serf's."""

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
