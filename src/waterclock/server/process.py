"""A node as a process: open it, serve it, and stop it at a signal.

SIGTERM and SIGINT stop it in good order; a second one ends the process at once, which loses nothing
that was acknowledged. A node that waits for etcd or for others to start with waits no longer then.
SIGHUP has the configuration read again (`reload.py`). What keeps it from starting (a taken port, a
folder in use, a setting that is wrong) is raised as one WaterclockError, for the command line to
print in one line.

The process keeps its memory against two stalls that were measured. Freed blocks are kept: glibc
returns large ones to the system at once and takes new ones for the next answer, and each page of
those is a fault on first touch. Fetching 4 MiB at a time took the node 6.4 ms of CPU a call, and
half of that if blocks up to 32 MiB come from a heap that keeps 256 MiB. And what is there when the
node is ready stays, so Python's collector need not look at it again: 60,000 objects of the
libraries took each full collection 60 ms, in which nobody was served. What comes later is looked at
rarely (`runtime/garbage.py`): with publishes over a thousand partitions a fifth of the time was
spent in walking through flushes under way.
"""

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from waterclock.model.clock import PULSE_MS, RunningClock
from waterclock.model.config import Config
from waterclock.model.units import MIB
from waterclock.node.node import Node, node_name, running_node
from waterclock.runtime.clock import SystemClock
from waterclock.runtime.garbage import collecting_rarely
from waterclock.runtime.lifecycle import calling_on_hangup, stopping_on_signals
from waterclock.runtime.supervisor import tell_ready, tell_reloading, tell_stopping
from waterclock.runtime.tracing import tracing
from waterclock.server.addresses import Addresses
from waterclock.server.app import serve
from waterclock.server.exposure import check_exposure
from waterclock.server.reload import Reloader, Reread
from waterclock.server.rest.starting import StartingHttp, answering_while_starting

if TYPE_CHECKING:
    from waterclock.server.cluster.starting import ClusteredNode

log = logging.getLogger(__name__)

EXIT_AT_ONCE = 130
EXIT_HUNG_UP = 128 + signal.SIGHUP

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

MMAP_BYTES = 32 * MIB
"""The most that glibc allows."""
KEPT_BYTES = 256 * MIB


async def run_node(
    config: Config,
    *,
    on_ready: Callable[[Addresses], None],
    on_stopping: Callable[[], None] = lambda: None,
    reread: Reread | None = None,
) -> None:
    """Run a node until a signal, then stop it well. Call `on_ready` once it can be reached, and
    `on_stopping` when it begins to stop; `reread` returns the configuration as it is by then.

    Runs in the main thread, in a loop of uvloop for speed. Raises what ended it otherwise.
    """
    check_exposure(config)
    raise_open_files()
    keep_freed_memory()
    stopping, starting, reloader = asyncio.Event(), asyncio.timeout(None), Reloader(config, reread)
    is_starting, is_serving = True, False

    def stop() -> None:
        stopping.set()
        # A node alone is started in a moment, and is stopped then. Others may not come for days.
        if config.cluster.is_replicated and is_starting:
            starting.reschedule(0)

    with (
        tracing("waterclock", is_enabled=config.tracing.enabled),
        stopping_on_signals(stop, stop_at_once=_end_at_once),
        calling_on_hangup(_when_hung_up(reloader, lambda: is_serving)),
        collecting_rarely(),
    ):
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(answering_while_starting(config, SystemClock()))
            started = await _started_unless(starting, config, stack, http)
            is_starting = False
            if started is None:
                tell_stopping()
                on_stopping()
                return
            node, clustered = started
            cluster = None if clustered is None else clustered.cluster
            server = await stack.enter_async_context(serve(node, config, reloader, cluster, http))
            reloader.on_reloaded += [node.configure, server.configure]
            if clustered is not None:
                await stack.enter_async_context(clustered.joined(server.addresses, server.access))
                reloader.on_reloaded.append(clustered.configure)
            await server.share_port()
            freeze_what_is_there()
            node.spawn(keep_pulse(node.groups.clock))
            on_ready(server.addresses)
            is_serving = True
            tell_ready()
            log.info("ready grpc=%s http=%s", server.addresses.grpc, server.addresses.http)
            await stopping.wait()
            is_serving = False
            tell_stopping()
            on_stopping()
            began = time.monotonic()
            if clustered is not None:
                await clustered.leave()
            await server.stop(spent_s=time.monotonic() - began)


def _when_hung_up(reloader: Reloader, is_serving: Callable[[], bool]) -> Callable[[], None]:
    has_terminal = os.isatty(0)

    def hung_up() -> None:
        # Who closes the window of a node means to end it, as ever.
        if has_terminal and not os.isatty(0):
            os._exit(EXIT_HUNG_UP)
        if not is_serving():  # a supervisor waits for the start, or for the end
            reloader.hung_up()
            return
        tell_reloading()
        reloader.hung_up()
        tell_ready()

    return hung_up


async def _started_unless(
    interrupted: asyncio.Timeout, config: Config, stack: AsyncExitStack, http: StartingHttp
) -> "tuple[Node, ClusteredNode | None] | None":
    """Start a node; None: it was interrupted."""
    try:
        async with interrupted:
            return await _started(config, stack, http)
    except TimeoutError:
        if not interrupted.expired():
            raise
    log.warning("stopped_before_ready")
    return None


async def _started(
    config: Config, stack: AsyncExitStack, http: StartingHttp
) -> "tuple[Node, ClusteredNode | None]":
    """Start a node, and whatever it has others by."""
    clock, replication = SystemClock(), None
    clustered = _clustered(config) if config.cluster.is_clustered else None
    if clustered is not None and config.cluster.is_replicated:
        replication = await stack.enter_async_context(clustered.replicating(clock))
        http.awaited = clustered.awaited
    node = await stack.enter_async_context(running_node(config, clock, replication))
    if clustered is not None:
        clustered.take(node)
    return node, clustered


def _clustered(config: Config) -> "ClusteredNode":
    from waterclock.server.cluster.starting import ClusteredNode  # a node alone needs none of it

    return ClusteredNode(config, node_name(config))


def cpu_ms() -> int:
    """Return how much time of processors this process has had, all threads together."""
    return time.process_time_ns() // 1_000_000


async def keep_pulse(clock: RunningClock, cpu_ms: Callable[[], int] = cpu_ms) -> None:
    """Tell a clock that this process runs, for as long as it does, and people when it did not."""
    known_ms = 0
    while True:
        clock.pulse(cpu_ms())
        if clock.paused_ms > known_ms:
            log.warning("paused ms=%d: sessions and leases go on", clock.paused_ms - known_ms)
            known_ms = clock.paused_ms
        await asyncio.sleep(PULSE_MS / 1_000)


def _end_at_once() -> None:
    log.warning("stopped_at_once")
    os._exit(EXIT_AT_ONCE)


def raise_open_files() -> int:
    """Allow this process as many open files as it may ask for; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed; False if it cannot (it is not glibc)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    has_raised = mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
    has_kept = mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    return bool(has_raised and has_kept)


def freeze_what_is_there() -> None:
    """Have the collector pass over everything that exists now. Call it once all is loaded."""
    gc.collect()
    gc.freeze()
