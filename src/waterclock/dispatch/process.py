"""A dispatcher or a worker as a program: what it needs is opened, signals end it, all is closed.

Redis need not be there when they start: they try until it is, and say so in the log.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from waterclock.dispatch.access import redis_tls
from waterclock.dispatch.config import DispatcherConfig, WorkerConfig
from waterclock.dispatch.dispatcher import Dispatcher
from waterclock.dispatch.metrics import Counts, Health
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.link import SILENCE_S_MAX
from waterclock.dispatch.sinks.redis import RedisSink
from waterclock.dispatch.sinks.sink import Sink
from waterclock.dispatch.worker.handlers import Handler, handler_of, load
from waterclock.dispatch.worker.worker import Worker
from waterclock.runtime.lifecycle import stopping_on_signals
from waterclock.runtime.tracing import tracing

log = logging.getLogger(__name__)


async def run_dispatcher(
    config: DispatcherConfig, *, on_ready: Callable[[Dispatcher], None] | None = None
) -> None:
    """Run a dispatcher until a signal, or `Dispatcher.stop`, ends it."""
    with tracing("waterclock-dispatcher", is_enabled=config.tracing):
        await _run_dispatcher(config, on_ready)


async def _run_dispatcher(
    config: DispatcherConfig, on_ready: Callable[[Dispatcher], None] | None
) -> None:
    if config.is_insecure:
        log.warning("insecure port=%d whoever_reaches_it_can=take_messages", config.port)
    tls = redis_tls(config)
    redis = RedisClient(config.redis, silence_s_max=_patience_s(config.lease_ms), tls=tls)
    dispatcher = Dispatcher(config, redis)

    def facts() -> dict[str, object]:
        # A standby is healthy: it is there to take over.
        return {"is_healthy": True, **_dispatcher_gauges(dispatcher)}

    health = Health(dispatcher_metrics(dispatcher), facts)
    try:
        with stopping_on_signals(dispatcher.stop):
            async with asyncio.TaskGroup() as tasks:
                metrics_host = config.metrics_host or config.host
                beside = _beside(tasks, health, metrics_host, config.metrics_port)
                if on_ready is not None:
                    beside.append(tasks.create_task(_tell(dispatcher, on_ready)))
                await dispatcher.run()
                for task in beside:
                    task.cancel()
    finally:
        redis.close()


def dispatcher_metrics(dispatcher: Dispatcher) -> Counts:
    """Return all that Prometheus sees of a dispatcher."""
    gauges = partial(_dispatcher_gauges, dispatcher)
    return Counts("waterclock_dispatch", dispatcher.counts, gauges)


def _dispatcher_gauges(dispatcher: Dispatcher) -> dict[str, float]:
    return {
        "epoch": dispatcher.epoch, "is_leading": dispatcher.is_leading,
        "pending": dispatcher.pending, "queued": dispatcher.queued,
        "workers": dispatcher.workers,
    }  # fmt: skip


async def _tell(dispatcher: Dispatcher, on_ready: Callable[[Dispatcher], None]) -> None:
    await dispatcher.is_listening.wait()
    on_ready(dispatcher)


async def run_worker(
    config: WorkerConfig,
    *,
    handler: Callable[..., object] | None = None,
    on_ready: Callable[[Worker], None] | None = None,
) -> None:
    """Run a worker until a signal, or `Worker.stop`, ends it."""
    with tracing("waterclock-worker", is_enabled=config.tracing):
        await _run_worker(config, handler, on_ready)


async def _run_worker(
    config: WorkerConfig,
    handler: Callable[..., object] | None,
    on_ready: Callable[[Worker], None] | None,
) -> None:
    config = replace(config, name=config.name or f"{socket.gethostname()}-{os.getpid()}")
    if config.is_insecure and config.listen:
        log.warning("insecure listen=%s whoever_reaches_it_can=send_messages", config.listen)
    found = _handler(config, handler)
    # While it waits for replicas a connection is silent, and not broken.
    wait_s = config.wait_ms / 1_000 if config.wait_replicas else 0.0
    tls = redis_tls(config)
    redis = RedisClient(config.redis, silence_s_max=SILENCE_S_MAX + wait_s, tls=tls)
    sink = await _sink(config, redis)
    worker = Worker(config, found, sink, redis)

    def facts() -> dict[str, object]:
        return {
            "is_healthy": worker.is_connected, **_worker_gauges(worker),
            "received": worker.counts.received, "failed": worker.counts.failed,
            "failed_in_a_row": worker.failures.in_a_row, "last_error": worker.failures.last_error,
        }  # fmt: skip

    health = Health(worker_metrics(worker), facts)
    try:
        with stopping_on_signals(worker.stop):
            async with asyncio.TaskGroup() as tasks:
                beside = _beside(tasks, health, config.metrics_host, config.metrics_port)
                if on_ready is not None:
                    on_ready(worker)
                await worker.run()
                for task in beside:
                    task.cancel()
    finally:
        await sink.close()
        redis.close()


def worker_metrics(worker: Worker) -> Counts:
    """Return all that Prometheus sees of a worker."""
    return Counts("waterclock_worker", worker.counts, partial(_worker_gauges, worker))


def _worker_gauges(worker: Worker) -> dict[str, float]:
    return {"epoch": worker.epoch, "is_connected": worker.is_connected, "held": worker.held}


def _handler(config: WorkerConfig, given: Callable[..., object] | None) -> Handler:
    if given is not None:
        return handler_of(given)
    if not config.handler:
        return handler_of(as_it_is, name="as_it_is")
    return load(config.handler)


def as_it_is(message: object) -> object:
    """Write a message as it came."""
    return message if isinstance(message, dict | bytes | str) else {"data": message}


async def _sink(config: WorkerConfig, redis: RedisClient) -> Sink:
    if config.sink == "waterclock":
        # The client of a node takes most of a worker's start: only workers that need it wait.
        from waterclock.dispatch.sinks.waterclock import WaterclockSink

        return await WaterclockSink.open(
            config.servers, topic=config.topic, credential=config.credential or None,
            window_ms=config.window_ms, bucket_ms=config.bucket_ms,
        )  # fmt: skip
    return RedisSink(
        redis, output=config.output, prefix=config.prefix, streams=config.streams,
        bucket_ms=config.bucket_ms, window_ms=config.window_ms, length_max=config.length_max,
        wait_replicas=config.wait_replicas, wait_ms=config.wait_ms,
    )  # fmt: skip


def _beside(
    tasks: asyncio.TaskGroup, health: Health, host: str, port: int
) -> list[asyncio.Task[None]]:
    return [tasks.create_task(health.serve(host, port))] if port else []


def _patience_s(lease_ms: int) -> float:
    """Return how long Redis may be silent before a new connection is tried: less than a lease."""
    return max(0.5, lease_ms / 1_000 / 2)
