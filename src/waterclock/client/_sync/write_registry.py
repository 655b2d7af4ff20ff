"""The blocking twin of `ledger.py`: the same names, and calls that wait."""

from waterclock.client import write_registry as ledger
from waterclock.client.loop_thread import LoopThread
from waterclock.client.write_registry import WriteBegun, WriterInfo, WriteState


class WriteRegistry:
    """Note what was written, and ask."""

    def __init__(self, background: LoopThread, ledger: ledger.WriteRegistry) -> None:
        self._background = background
        self._ledger = ledger

    def begin(self, topic: str, writer: str, batch: int, task: int) -> WriteBegun:
        """Note that a task begins to write, durably; or learn how far it came before."""
        return self._background.run(self._ledger.begin(topic, writer, batch, task))

    def finish(self, topic: str, writer: str, batch: int, task: int, *, rows: int) -> WriteState:
        """Note that all rows of a task are stored; raises NotFound if it did not begin."""
        return self._background.run(self._ledger.finish(topic, writer, batch, task, rows=rows))

    def commit(self, topic: str, writer: str, batch: int) -> bool:
        """Note that a batch is whole, and all before it; tell whether that is news."""
        return self._background.run(self._ledger.commit(topic, writer, batch))

    def abandon(self, topic: str, writer: str) -> bool:
        """Forget a writer; tell whether there was one. What it has published stays."""
        return self._background.run(self._ledger.abandon(topic, writer))

    def list(self, topic: str) -> list[WriterInfo]:
        """Return the writers of a topic, by name."""
        return self._background.run(self._ledger.list(topic))
