"""Who is in the cluster: HashiCorp's memberlist protocol, SWIM with Lifeguard, as Serf speaks it.

`Gossip` is the core: it is handed packets, streams and the time, and returns effects. It knows
nothing of the rest of the project and could be released alone.

    gossip        the core; puts together what follows
    membership    the rules: alive, suspect, dead, left; refutation
    prober        failure detection: ping, indirect ping, ping over TCP
    lifeguard     suspicion and self-doubt
    members       the table of nodes, in the order of probes
    outbox        effects and packets; `broadcasts` is the queue of news
    reconnecting  whom to try again
    agent         the shell: UDP, TCP and a timer; `discovery` finds seeds, `providers` in clouds
    messages      the wire; `packets`, `streams`, `lzw`, `keyring`, `serf` with it
"""

from waterclock.cluster.gossip.config import GossipConfig
from waterclock.cluster.gossip.effects import (
    Conflicted,
    Effect,
    Failed,
    Joined,
    Left,
    Member,
    MemberEvent,
    MergeRefused,
    OpenPushPull,
    OpenStreamPing,
    PacketsBlocked,
    SendPacket,
    Updated,
)
from waterclock.cluster.gossip.errors import BadKey, BadPacket
from waterclock.cluster.gossip.gossip import Gossip
from waterclock.cluster.gossip.keyring import Keyring
from waterclock.cluster.gossip.streams import State

__all__ = [
    "BadKey",
    "BadPacket",
    "Conflicted",
    "Effect",
    "Failed",
    "Gossip",
    "GossipConfig",
    "Joined",
    "Keyring",
    "Left",
    "Member",
    "MemberEvent",
    "MergeRefused",
    "OpenPushPull",
    "OpenStreamPing",
    "PacketsBlocked",
    "SendPacket",
    "State",
    "Updated",
]
