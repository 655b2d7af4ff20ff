"""A server a test may kill: started again, it has the same port and the same data."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from benchmarks.peers.server import Server


class Restarting:
    """A server, run again and again in the same way."""

    def __init__(self, run: Callable[[], AbstractContextManager[Server]]) -> None:
        self._run = run
        self._until_stopped = ExitStack()
        self._server: Server | None = None

    def start(self) -> None:
        """Start it; it answers on return."""
        self._server = self._until_stopped.enter_context(self._run())

    def kill(self) -> None:
        """End it at once, as a crash would."""
        assert self._server is not None, "it was never started"
        self._server.kill()
        self._until_stopped.close()

    def stop(self) -> None:
        """Ask it to end, if it runs."""
        self._until_stopped.close()


@contextmanager
def restarting(server: Restarting) -> Iterator[Restarting]:
    """Run a server until the end of the block, whatever happens to it within."""
    try:
        server.start()
        yield server
    finally:
        server.stop()
