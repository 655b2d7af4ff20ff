"""Who can speak with whom: the six version bytes of a node.

    least, greatest, current of memberlist's protocol; least, greatest, current of Serf's

A push/pull is merged only if everyone in it and everyone known can speak with each other. One node
that cannot would so keep all others from merging; therefore it is not admitted by news either.
"""

from collections.abc import Collection, Iterable

from waterclock.cluster.gossip.serf import VERSIONS
from waterclock.cluster.gossip.streams import NodeState, State

VERSION_COUNT = 6


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
