"""Says what a node that starts waits for: each thing once, and nothing if it comes at once."""

import asyncio
import logging
from typing import Final

from waterclock.server.cluster.replication.replicator import META, Replicator

PATIENCE_S: Final = 1.0

_log = logging.getLogger(__name__)


def awaited(replicator: Replicator, coordinator: str) -> str:
    """Return what a node cannot start without; empty: nothing."""
    session = replicator.session
    if not session.was_read.is_set() or not session.is_registered.is_set():
        return coordinator
    if session.view.meta_log is None:
        return f"{len(session.view.nodes)} of {replicator.settings.expect} nodes have registered"
    if not replicator.is_joined:
        leader = replicator.leader_of(META, 0)
        return f"the records of topics: {f'{leader} leads them' if leader else 'nobody leads them'}"
    return ""


async def say_waits(replicator: Replicator, coordinator: str) -> None:
    """Log what is waited for until the node has what it needs."""
    said = ""
    while True:
        await asyncio.sleep(PATIENCE_S)
        reason = awaited(replicator, coordinator)
        if not reason:
            return
        if reason != said:
            _log.warning("waiting_for %s", reason)
            said = reason
