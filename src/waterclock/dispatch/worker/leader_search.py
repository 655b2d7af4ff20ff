"""A worker's search for the leader: it looks into the lock again and again, and says if it waits.

Also while it is connected: a leader that hangs keeps its connections, and only the lock tells that
another leads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from waterclock.dispatch.core.lease import LockValue, parse_lock_value
from waterclock.dispatch.links import printable
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.link import RedisAway, RedisRefused
from waterclock.model.errors import BadInput
from waterclock.model.waiting import Waiting

LOOK_S = 0.1
"""How often a worker without a leader looks for one; with a leader, a third as often."""

log = logging.getLogger("waterclock.dispatch.worker.worker")


class LeaderSearch:
    """Looks which dispatcher leads; `follow` connects to it, unless the worker is connected."""

    def __init__(
        self,
        redis: RedisClient,
        lock: str,
        *,
        follow: Callable[[LockValue], Awaitable[None]],
        is_connected: Callable[[], bool],
    ) -> None:
        self._redis = redis
        self._lock = lock
        self._follow = follow
        self._is_connected = is_connected
        self._waiting = Waiting("a dispatcher that leads")
        self._was_dialled = False
        self.refusal = ""
        """Why a leader last closed the connection."""

    async def run(self) -> None:
        """Search until cancelled."""
        while True:
            reason = await self._look()
            now_s = asyncio.get_running_loop().time()
            if self._is_connected():
                said = self._waiting.here(now_s)
            else:
                said = self._waiting.away(reason, now_s) if reason else None
            if said is not None:
                log.warning("%s", printable(said))
            await asyncio.sleep(3 * LOOK_S if self._is_connected() else LOOK_S)

    async def _look(self) -> str:
        """Follow the leader; return why the worker is not connected, as far as that is known."""
        try:
            raw = await self._redis.call(self._lock, "GET", self._lock)
            if raw is None:
                return f"nobody holds the lock {self._lock}"
            leader = parse_lock_value(raw)
            await self._follow(leader)
        except TimeoutError:
            return "the leader does not answer"
        # ValueError: a name of a host that cannot be looked up.
        except (RedisAway, RedisRefused, OSError, BadInput, ValueError) as error:
            return str(error) or repr(error)
        # One that was dialled just now has not had the time to take us in; if that lasts, tell.
        was_dialled, self._was_dialled = self._was_dialled, not self._is_connected()
        if not was_dialled:
            return ""
        why = f": {self.refusal}" if self.refusal else ""
        return f"{leader.host}:{leader.port} has not taken us in yet{why}"
