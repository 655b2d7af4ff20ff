"""Waiting for what other nodes store in the same database, which tells nobody: it is asked.

Once a second, once for each stream in which somebody waits, however many do.
"""

import asyncio
import logging

from waterclock.model.errors import WaterclockError
from waterclock.node.streams.host import StreamHost
from waterclock.node.streams.persister import Persister
from waterclock.stores.base import END

AGAIN_S = 1.0
AT_ONCE = 4
"""Streams asked for at the same time: fewer than a store has connections."""

log = logging.getLogger(__name__)


class StorePoller:
    """Looks for what is new in a store that others write to."""

    def __init__(self, host: StreamHost, persister: Persister) -> None:
        self._host = host
        self._storing = persister
        self.rounds = 0

    def __repr__(self) -> str:
        return f"<StorePoller {len(self._host.tailed())} streams>"

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(AGAIN_S)
            names = self._host.tailed()
            for start in range(0, len(names), AT_ONCE):
                await asyncio.gather(*map(self._look, names[start : start + AT_ONCE]))
            self.rounds += 1

    async def _look(self, stream: str) -> None:
        try:
            page = await self._storing.read(stream, after=END, limit=1)
        except WaterclockError:
            return  # those who ask for something are told
        except Exception:
            log.exception("unforeseen while looking for stored messages")
            return
        self._host.stored(stream, page.last, None)
