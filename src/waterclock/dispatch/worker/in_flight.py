"""What a worker holds: since when, for whom, and which of it deserves more time.

While the handler runs, the leader is told now and then that it does (PROGRESS), so that a slow
message is not handed to another worker; but not for ever: what has been at work longer than the
limit is not extended any more, nor is anything else if all of the pool are stuck like that.

How much a worker holds follows how fast it is. Credit doubles while messages are done well before
their deadline and halves when they are not, so that a slow handler does not hoard what another
worker could begin.
"""

import asyncio
from collections.abc import Iterable, Sequence

from waterclock.dispatch.worker.handler_pool import Item


class InFlight:
    """The messages of one worker, and its credit. Times are seconds on the monotonic clock."""

    def __init__(self, *, credit_max: int, workers: int, handler_s_max: float) -> None:
        self._credit_max = credit_max
        self._workers = workers
        self._handler_s_max = handler_s_max
        self._since: dict[bytes, tuple[float, object]] = {}
        """In the order they came, so that the oldest stand first."""
        self.credit = min(credit_max, 8 * workers)
        self._finished = 0
        self._is_empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._since)

    def __repr__(self) -> str:
        return f"<InFlight {len(self._since)} of {self.credit}>"

    def take(self, uuids: Sequence[bytes], link: object, now: float) -> list[int]:
        """Note messages that came; return the rows that are new. One that is in flight already, by
        the same link, is being worked on: its answer will do for both."""
        since, fresh = self._since, (now, link)
        rows = []
        for row, uuid in enumerate(uuids):
            held = since.get(uuid)
            if held is None or held[1] is not link:
                since[uuid] = fresh
                rows.append(row)
        return rows

    def done(self, uuids: Iterable[bytes]) -> None:
        """Forget messages that were answered."""
        count = len(self._since)
        for uuid in uuids:
            self._since.pop(uuid, None)
        self._finished += count - len(self._since)
        self._tell_if_empty()

    def drop(self, link: object) -> None:
        """Forget what came by a connection that is lost: its leader hands it to others."""
        self._since = {u: held for u, held in self._since.items() if held[1] is not link}
        self._tell_if_empty()

    def holds_of(self, link: object) -> bool:
        """Tell whether something is in flight that came by a connection."""
        return any(held[1] is link for held in self._since.values())

    async def until_empty(self) -> None:
        """Return when nothing is in flight."""
        while self._since:
            self._is_empty.clear()
            await self._is_empty.wait()

    def _tell_if_empty(self) -> None:
        if not self._since:
            self._is_empty.set()

    def to_extend(
        self, link: object, at_work: Sequence[tuple[Item, float]], *, older_s: float, now: float
    ) -> list[bytes]:
        """Return what should be given more time, of what is here for at least so long."""
        stuck = {item[0] for item, since in at_work if now - since > self._handler_s_max}
        if len(stuck) >= self._workers:
            return []
        found = []
        for uuid, (since, its) in self._since.items():
            if now - since < older_s:
                break
            if its is link and uuid not in stuck:
                found.append(uuid)
        return found

    def adapt(self, *, deadline_s: float, now: float) -> int:
        """Return the credit to ask for, by how old the oldest message is."""
        oldest = next(iter(self._since.values()), None)
        age_s = 0.0 if oldest is None else now - oldest[0]
        if age_s > deadline_s / 2:
            self.credit = max(self._workers, self.credit // 2)
        elif self._finished > self.credit // 4 and age_s < deadline_s / 8:
            self.credit = min(self._credit_max, 2 * self.credit)
        self.credit = min(self.credit, self._credit_max)
        self._finished = 0
        return self.credit
