"""A node's session with the coordinator: its lease, its record, and all keys as it knows them.

While the coordinator is away everything goes on as it stands: nobody takes over, nothing is placed,
and the session tries again. A lease that was lost meanwhile is granted anew, and the node's record
put again. Once the coordinator has gone back in time nothing it says is taken any more.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from waterclock.cluster.coordinator.coordinator import Coordinator
from waterclock.cluster.coordinator.errors import (
    BadRecord,
    Compacted,
    CoordinatorRefused,
    CoordinatorUnavailable,
    LeaseNotFound,
    RevisionWentBack,
)
from waterclock.cluster.coordinator.records import (
    Keys,
    NodeRecord,
    decode_record,
    encode_record,
)
from waterclock.cluster.coordinator.requests import (
    ABSENT,
    Lease,
    Put,
    Revision,
    Txn,
    Unchanged,
    one_key,
)
from waterclock.cluster.replication.cluster_view import Changed, ClusterView
from waterclock.model.ids import Millis

PAUSE_S: Final = 0.3
"""Before something is tried again that the coordinator did not answer."""
LEAVE_S: Final = 1.0

_log = logging.getLogger(__name__)


class Session:
    """What one node has with the coordinator. `run` it in a task; end it with `leave`."""

    def __init__(
        self,
        coordinator: Coordinator,
        keys: Keys,
        name: str,
        record: NodeRecord,
        *,
        lease_ms: int,
        on_changed: Callable[[Changed], None],
        now_ms: Callable[[], Millis],
    ) -> None:
        self.coordinator = coordinator
        self.keys = keys
        self.name = name
        self.record = record
        self.view = ClusterView(keys)
        self.problem = ""
        """Why the coordinator cannot be asked, empty if it can."""
        self.problem_since_ms = now_ms()
        self.has_gone_back = False
        """It was restored from an old copy: people must look at it, and start the nodes again."""
        self.lost_leases = 0
        self.was_read = asyncio.Event()
        self.is_registered = asyncio.Event()
        self._lease_s = -(-lease_ms // 1_000)
        self._lease: Lease | None = None
        self._has_left = False
        self._on_changed = on_changed
        self._now_ms = now_ms

    def __repr__(self) -> str:
        return f"<Session of {self.name}, {self.problem or 'well'}, {self.view!r}>"

    async def run(self) -> None:
        """Keep the node registered, and the view up to date, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_registered())
            tasks.create_task(self._follow())

    async def say_leaving(self) -> None:
        """Say in the node's record that it stops soon. Raises CoordinatorError if that fails."""
        self.record = msgspec.structs.replace(self.record, is_leaving=True)
        if self._lease is not None:
            await self._register(self._lease)

    async def leave(self) -> None:
        """Give the lease back, if that can be done at once: others need not wait for its end."""
        self._has_left = True
        lease, self._lease = self._lease, None
        if lease is not None:
            with suppress(CoordinatorUnavailable, LeaseNotFound, RevisionWentBack, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self.coordinator.revoke(lease.lease)

    # The lease

    async def _keep_registered(self) -> None:
        while not self._has_left:
            try:
                lease = await self._leased()
                is_mine = self.is_registered.is_set() or await self._register(lease)
            except LeaseNotFound:
                if self._has_left:
                    return
                self.lost_leases += 1
                self._lease = None
                _log.warning("lease_lost node=%s", self.name)
                continue
            except (CoordinatorUnavailable, CoordinatorRefused) as error:
                self._note(str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            except RevisionWentBack as error:
                self._give_up(error)
                return
            if is_mine:
                self._note("")
                self.is_registered.set()
            await asyncio.sleep(lease.ttl_s / 3)

    async def _leased(self) -> Lease:
        """Return the lease, granted or kept alive."""
        if self._lease is None:
            self.is_registered.clear()
            lease = await self.coordinator.grant(self._lease_s)
        else:
            lease = await self.coordinator.keep_alive(self._lease.lease)
        if not self._has_left:  # else nobody would give it back
            self._lease = lease
        return lease

    async def _register(self, lease: Lease) -> bool:
        """Put the node's record; tell whether its name was free."""
        key = self.keys.node(self.name)
        found = (await self.coordinator.read(one_key(key))).items
        if found and self._is_of_another(found[0].value, key):
            # Its lease ends by itself if it is gone: this node was here, with another disk.
            self._note(f"another node is called {self.name!r}, or was a moment ago")
            return False
        revision = found[0].mod_revision if found else ABSENT
        put = Put(key, encode_record(self.record), lease.lease)
        result = await self.coordinator.write(Txn((Unchanged(key, revision),), (put,)))
        return result.succeeded

    def _is_of_another(self, value: bytes, key: bytes) -> bool:
        try:
            return decode_record(NodeRecord, value, key=key).disk != self.record.disk
        except BadRecord:
            return True

    # The keys

    async def _follow(self) -> None:
        while True:
            try:
                await self._read_and_watch()
            except Compacted as error:
                _log.info("coordinator_compacted: %s", error)
            except (CoordinatorUnavailable, CoordinatorRefused) as error:
                self._note(str(error))
                await asyncio.sleep(PAUSE_S)
            except RevisionWentBack as error:
                self._give_up(error)
                return

    async def _read_and_watch(self) -> None:
        everything = self.keys.everything
        result = await self.coordinator.read(everything)
        self._tell(self.view.read(result))
        self.was_read.set()
        start = Revision(result.revision + 1)
        async with self.coordinator.watch(everything, from_revision=start) as batches:
            async for batch in batches:
                self._tell(self.view.watched(batch))

    def _tell(self, changed: Changed) -> None:
        for problem in changed.problems:
            _log.error("coordinator_record_refused: %s", problem)
        self._on_changed(changed)

    # Problems

    def _note(self, problem: str) -> None:
        if bool(problem) != bool(self.problem):
            self.problem_since_ms = self._now_ms()
            if problem:
                _log.warning("coordinator_away: %s", problem)
            else:
                _log.info("coordinator_back")
        self.problem = problem

    def _give_up(self, error: RevisionWentBack) -> None:
        if not self.has_gone_back:
            _log.error("coordinator_went_back: %s", error)
        self.has_gone_back = True
        self._note(str(error))
