"""What goes out: effects in the order they were decided, and packets filled up with news."""

from waterclock.cluster.gossip.broadcasts import Broadcasts, retransmit_limit
from waterclock.cluster.gossip.config import GossipConfig
from waterclock.cluster.gossip.effects import Effect, SendPacket
from waterclock.cluster.gossip.members import Members, Node
from waterclock.cluster.gossip.messages import Address, Message, encode
from waterclock.cluster.gossip.packets import (
    COMPOUND_HEAD_BYTES,
    COMPOUND_PART_BYTES,
    CRC_BYTES,
    PARTS_MAX,
    packed,
)

_CRC_PROTOCOL_MIN = 5


class Outbox:
    """Holds the effects of one event."""

    def __init__(self, config: GossipConfig, members: Members, *, overhead_bytes: int) -> None:
        """Each packet will be `overhead_bytes` longer than it is made here, by its seal."""
        self._room_bytes = config.packet_bytes_max - overhead_bytes - CRC_BYTES
        self._room_bytes -= COMPOUND_HEAD_BYTES
        self._retransmit_mult = config.retransmit_mult
        self._fanout = config.gossip_nodes
        self._members = members
        self._effects: list[Effect] = []
        self.broadcasts = Broadcasts()

    def add(self, effect: Effect) -> None:
        """Let the shell do it."""
        self._effects.append(effect)

    def taken(self) -> list[Effect]:
        """Return what is to be done, once."""
        effects, self._effects = self._effects, []
        return effects

    def broadcast(self, subject: str, message: Message) -> None:
        """Tell everyone, instead of what was said of the subject before."""
        self.broadcasts.put(subject, encode(message))

    def send(self, message: Message, *, to: Node | Address) -> None:
        """Send a message, and news in the room that is left."""
        first = encode(message)
        parts = [first]
        if len(self.broadcasts):
            parts += self._news(len(first) + COMPOUND_PART_BYTES, PARTS_MAX - 1)
        self._send(parts, to)

    def send_alone(self, *messages: Message, to: Node | Address) -> None:
        """Send messages in one packet, and nothing else."""
        self._send([encode(message) for message in messages], to)

    def send_news(self, to: Node) -> None:
        """Send as much news as fit."""
        parts = self._news(0, PARTS_MAX)
        if parts:
            self._send(parts, to)

    def _news(self, used_bytes: int, parts_max: int) -> list[bytes]:
        sends_max = retransmit_limit(self._retransmit_mult, len(self._members), fanout=self._fanout)
        room_bytes = self._room_bytes - used_bytes
        return self.broadcasts.take(room_bytes, sends_max=sends_max, parts_max=parts_max)

    def _send(self, parts: list[bytes], to: Node | Address) -> None:
        if isinstance(to, Node):
            has_crc = to.protocol_max >= _CRC_PROTOCOL_MIN
            self._effects.append(SendPacket(to.address, packed(parts, has_crc=has_crc)))
        else:
            self._effects.append(SendPacket(to, packed(parts, has_crc=False)))
