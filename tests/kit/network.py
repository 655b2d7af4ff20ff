"""The network between the parts: a small TCP proxy for each way, which can be cut.

A cut by `reset` breaks connections and lets none be made. By `hold` nothing passes, nobody is told,
and when it heals what was sent meanwhile arrives, late: the case in which an old leader's words
reach somebody who has another. By `drop` nothing passes and the connections do not survive it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import uvloop

CHUNK = 1 << 16
CutMode = Literal["reset", "hold", "drop"]
Result = TypeVar("Result")


class _Pair:
    """One connection, both ways."""

    def __init__(self, first: bytes, near: asyncio.StreamWriter) -> None:
        self.first = first
        self.writers = [near]
        self.passes = asyncio.Event()
        self.passes.set()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                await self.passes.wait()
                if writer.is_closing():
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            self.abort()
        writer.close()

    def abort(self) -> None:
        self.passes.set()
        for writer in self.writers:
            writer.transport.abort()


class Wire:
    """Everything that connects to one place goes through here."""

    def __init__(self, network: "Network", port: int) -> None:
        self._network = network
        self._target = port
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._mode: CutMode | None = None
        self._who = b""
        self._healed = asyncio.Event()
        self.port = 0

    @property
    def address(self) -> str:
        """Where to connect instead."""
        return f"127.0.0.1:{self.port}"

    def cut(self, mode: CutMode, who: str = "") -> None:
        """Cut it; with a name only for those whose first words hold it."""
        self._network.do(lambda: self._cut(mode, who.encode()))

    def heal(self) -> None:
        """Mend it."""
        self._network.do(self._heal)

    def close(self) -> None:
        """Take it away, with all its connections."""
        self._network.do(self._close)

    async def open(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _is_cut(self, first: bytes) -> bool:
        return self._mode is not None and self._who in first

    def _cut(self, mode: CutMode, who: bytes) -> None:
        self._mode, self._who = mode, who
        self._healed.clear()
        for pair in [*self._pairs]:
            if self._is_cut(pair.first):
                pair.passes.clear()
                if mode == "reset":
                    pair.abort()

    def _heal(self) -> None:
        mode, self._mode = self._mode, None
        self._healed.set()
        for pair in [*self._pairs]:
            if not pair.passes.is_set():
                if mode == "drop":
                    pair.abort()
                pair.passes.set()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for pair in [*self._pairs]:
            pair.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection. Who it is shows in its first words: all our parties speak first."""
        pair = _Pair(b"", writer)
        self._pairs.add(pair)
        try:
            pair.first = await reader.read(CHUNK)
            while pair.first and self._is_cut(pair.first):
                if self._mode == "reset":
                    pair.abort()
                    return
                await self._healed.wait()
            if not pair.first:
                return
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            pair.writers.append(far_writer)
            far_writer.write(pair.first)
            await asyncio.gather(pair.pump(reader, far_writer), pair.pump(far_reader, writer))
        except OSError:
            pair.abort()
        except asyncio.CancelledError:
            pair.abort()  # the far end too: a loop of uvloop waits for ever to close around it
            raise
        finally:
            self._pairs.discard(pair)
            writer.close()


class Network:
    """Runs wires in a thread. Use it in a `with` block."""

    def __enter__(self) -> "Network":
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        """Run until stopped, and let what is left end: what it holds open, closing waits for."""
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=1))
        self._loop.close()

    def wire(self, port: int, *, host: str = "127.0.0.1", own_port: int = 0) -> Wire:
        """Return a new way to a port of 127.0.0.1; itself on any port, or on one it is told."""
        wire = Wire(self, port)
        self.wait_for(wire.open(host, own_port))
        return wire

    def do(self, step: Callable[[], object]) -> None:
        """Do something in the thread, and wait until it is done."""

        async def once() -> None:
            step()

        self.wait_for(once())

    def wait_for(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return what a coroutine returns in the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


@contextmanager
def wired(port: int, *, host: str = "127.0.0.1", own_port: int = 0) -> Iterator[Wire]:
    """Have one way to a port of 127.0.0.1."""
    with Network() as network:
        wire = network.wire(port, host=host, own_port=own_port)
        try:
            yield wire
        finally:
            wire.close()
