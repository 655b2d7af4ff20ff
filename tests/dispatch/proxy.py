"""A TCP proxy that can be cut: connections hang, or break, between any two parts."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TURNS = 5
"""Of a loop, until what one of them called for is done."""


class Proxy:
    """Passes bytes to a target until it is cut. It runs on a thread of its own."""

    def __init__(self, target: int, *, host: str, port: int) -> None:
        self._target = target
        self._place = (host, port)
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._is_up.wait()
        assert self._server is not None
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address: str = f"{host}:{self.port}"

    def hang(self) -> None:
        """Let connections stand and carry nothing, as a cut cable does; new ones hang too."""
        self._call(self._flows.clear)

    def flow(self) -> None:
        """Carry again what was held back, and let new connections through."""

        def open_again() -> None:
            self._is_refusing = False
            self._flows.set()

        self._call(open_again)

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `flow`."""

        def break_all() -> None:
            self._is_refusing = True
            for writer in self._writers:
                writer.transport.abort()

        self._call(break_all)

    def close(self) -> None:
        """End it."""
        self._call(self._loop.stop)
        self._thread.join()

    def _call(self, function: Callable[[], object]) -> None:
        done = threading.Event()

        def run() -> None:
            function()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def start() -> None:
            self._server = await asyncio.start_server(self._pass, *self._place)

        self._loop.run_until_complete(start())
        self._is_up.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(TURNS):  # what was accepted begins, so that it can be ended
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(TURNS):  # a transport closes its socket a turn after it was aborted
            await asyncio.sleep(0)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if not self._is_refusing:
                await self._flows.wait()
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
                self._writers.add(far_writer)
                try:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(self._carry(reader, far_writer))
                        tasks.create_task(self._carry(far_reader, writer))
                finally:
                    self._writers.discard(far_writer)
                    far_writer.transport.abort()
        except (OSError, ExceptionGroup):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes until either side ends; then end both."""
        while data := await reader.read(65_536):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


@contextmanager
def proxied(target: int, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[Proxy]:
    """Run a proxy to a port of 127.0.0.1."""
    proxy = Proxy(target, host=host, port=port)
    try:
        yield proxy
    finally:
        proxy.close()
