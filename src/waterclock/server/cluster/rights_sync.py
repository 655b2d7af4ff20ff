"""Keeps the secure folder of a node and the records of the cluster the same, as far as both let in.

Whenever the folder was loaded again, or something was committed, the two are looked at together:
what the records have is written to the folder, and what people did to the folder is told to the
leader of the records. Until it answers, the folder holds: whom it removes is let in here no more,
and whom it adds is, whatever the other nodes know.

A node that starts takes the records up before it answers anybody, so nobody is let in who was
removed while it was down.
"""

import asyncio
import logging
from typing import Final

from waterclock.model.errors import Unavailable, WaterclockError
from waterclock.model.ids import Millis
from waterclock.node.node import Node
from waterclock.node.problems import RIGHTS_APART, HealthProblem, problem_named
from waterclock.node.rights import new_identity
from waterclock.security.shared_folder import ASIDE_FILE, COMMON_FILE, Settled, SharedFolder
from waterclock.server.access import Access
from waterclock.server.cluster.calls.remote_rights import RemoteRights
from waterclock.server.cluster.peers import Peers

RETRY_S: Final = 1.0
"""After how long what could not be shared is tried again, and the way to the leader looked at."""
APART_MS: Final = 5_000
"""For how long a node must be apart from the leader until it says so: another may lead by then."""

log = logging.getLogger(__name__)


class RightsSync:
    """Shares the rights of one node with the others while `run` runs."""

    def __init__(
        self, node: Node, access: Access, folder: SharedFolder, remote: RemoteRights, peers: Peers
    ) -> None:
        self._node = node
        self._rights = node.rights
        self._access = access
        self._folder = folder
        self._remote = remote
        self._peers = peers
        self._woken = asyncio.Event()
        self._kept: frozenset[str] = frozenset()
        """Admins who stay, whatever the folder says."""
        self._is_pending = False
        """Something is to be told, or could not be done: it is tried again soon."""
        self._problem = ""
        self._since_ms = Millis(0)
        self._is_said = False
        self._rights.on_changed.append(self._woken.set)
        access.on_reloaded.append(self._woken.set)
        node.more_problems.append(self.problems)

    def __repr__(self) -> str:
        return f"<RightsSync of {self._folder!r}, {self._problem or 'well'}>"

    def problems(self) -> list[HealthProblem]:
        """Return why other nodes may let in whom this one does not, or the other way round."""
        if not self._is_apart():
            return []
        return [problem_named(RIGHTS_APART, self._problem, self._since_ms)]

    async def run(self) -> None:
        """Share until cancelled."""
        while True:
            self._woken.clear()
            await self._pass()
            while not await self._is_woken():
                if self._is_pending:
                    break
                self._note(self._way_problem())

    async def _is_woken(self) -> bool:
        try:
            async with asyncio.timeout(RETRY_S):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    async def _pass(self) -> None:
        self._is_pending = False
        try:
            problem = await self._share()
        except WaterclockError as error:
            problem = str(error)
        self._is_pending = self._is_pending or problem is not None
        self._note(problem or self._way_problem())

    async def _share(self) -> str | None:
        """Bring folder and records together; return what keeps them apart."""
        await self._begin()
        settled = await self.settle()
        if settled is None:
            return None
        if settled.changes:
            self._is_pending = True
            return await self._tell(settled)
        records = self._rights.committed()
        if records is None or settled.revision <= records.revision:
            return None
        if not self._rights.is_leading:
            # Another node that goes by this folder is ahead for a moment, or it stays so.
            return (
                f"the folder has revision {settled.revision} of the records, which are at "
                f"{records.revision}, as of an older backup: remove {COMMON_FILE} to go by them"
            )
        await self._rights.overtake(settled.revision)
        return None

    async def _begin(self) -> None:
        """Make the records of this node's folder, if it leads and there are none."""
        if self._rights.is_to_begin():
            identity = new_identity()
            found = await asyncio.to_thread(self._folder.begin, identity)
            await self._rights.begin(identity, found)

    async def settle(self) -> Settled | None:
        """Have the node go by what the records have; None if there are none. Raises BadInput or
        StorageFailed if the folder cannot be read or written."""
        records, now_ms = self._rights.committed(), self._node.clock.now_ms()
        if records is None:
            return None
        kept, self._kept = self._kept, frozenset()
        settled = await asyncio.to_thread(self._folder.exchange, records, now_ms=now_ms, kept=kept)
        if settled.dropped:
            names = ",".join(settled.dropped)
            log.warning("principals_put_aside file=%s principals=%s", ASIDE_FILE, names)
        if settled.has_changed:
            await self._access.reload()
        return settled

    async def _tell(self, settled: Settled) -> str | None:
        names = ",".join(change.name for change in settled.changes[:10])
        log.info("rights_sharing changes=%d principals=%s", len(settled.changes), names)
        try:
            answer = await self._remote.share(settled.changes, keeps_admin=settled.keeps_admin)
        except Unavailable as error:
            return f"the other nodes have not heard of changes of {names}: {error}"
        if answer.kept:
            log.error("last_admin_kept principals=%s: add another first", ",".join(answer.kept))
            self._kept = frozenset(answer.kept)
            self._woken.set()
        reasons = [f"{name}: {reason}" for name, reason in answer.refused.items()]
        return f"not shared: {'; '.join(reasons)}" if reasons else None

    def _way_problem(self) -> str | None:
        """Return why nothing is heard from the leader of the records."""
        leader = self._remote.places.meta_leader()
        if leader is None:
            return "no node leads the records"
        if leader != self._remote.places.me and leader not in self._peers.linked:
            return f"there is no link to {leader}, which leads the records"
        return None

    def _note(self, problem: str | None) -> None:
        now_ms = self._node.clock.now_ms()
        if problem is not None and not self._problem:
            self._since_ms = now_ms
        self._problem = problem or ""
        if self._is_apart() != self._is_said:
            self._is_said = not self._is_said
            if self._is_said:
                log.warning("rights_apart reason=%s", self._problem)
            else:
                log.info("rights_together")

    def _is_apart(self) -> bool:
        return bool(self._problem) and self._node.clock.now_ms() - self._since_ms >= APART_MS


def rights_sync(
    node: Node, access: Access, remote: RemoteRights, peers: Peers
) -> RightsSync | None:
    """Return what shares the rights of a node; None if it has none, or only reads them."""
    if access.folder is None:
        return None
    folder = SharedFolder(access.folder.path)
    if not folder.is_writable():
        log.warning("rights_not_shared folder=%s: it can only be read", access.folder.path)
        return None
    return RightsSync(node, access, folder, remote, peers)
