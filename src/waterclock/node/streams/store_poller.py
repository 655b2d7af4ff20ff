"""Polling the store for what other nodes have written to it: a database tells nobody.

Once a second, once for each stream that has receivers waiting, however many they are.
"""

import asyncio
import logging

from waterclock.model.errors import WaterclockError
from waterclock.node.streams.host import StreamHost
from waterclock.node.streams.persister import Persister
from waterclock.stores.base import END

POLL_S = 1.0
AT_ONCE = 4
"""Streams asked for at the same time: fewer than a store has connections."""

log = logging.getLogger(__name__)


class StorePoller:
    """Polls a store that other nodes write to."""

    def __init__(self, host: StreamHost, persister: Persister) -> None:
        self._host = host
        self._persister = persister
        self.rounds = 0

    def __repr__(self) -> str:
        return f"<StorePoller {len(self._host.table.tailed())} streams>"

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            names = self._host.table.tailed()
            for start in range(0, len(names), AT_ONCE):
                await asyncio.gather(*map(self._poll, names[start : start + AT_ONCE]))
            self.rounds += 1

    async def _poll(self, stream: str) -> None:
        try:
            page = await self._persister.read(stream, after=END, limit=1)
        except WaterclockError:
            return  # whoever reads or writes meanwhile gets the error
        except Exception:
            # A database's driver may raise anything. It is no other stream's fault, and the next
            # poll may succeed: a store never ends the node.
            log.exception("unforeseen while polling the store")
            return
        self._host.note_stored(stream, page.last, None)
