"""Runs all steps in order, on a node of their own."""

from collections.abc import Callable
from pathlib import Path

from demos.node import crash, damage, failover, failures, orders, replay, schedule
from demos.node.node_process import NodeProcess
from demos.node.steps import Started, Step, Steps, Stopped
from waterclock.cli.output.terminal import busy
from waterclock.client.client import connect

DATA = "node"
"""Below the demo's folder: what the node keeps."""
DAMAGED = "damaged"
CLUSTER = "cluster"
SETTINGS = ("log.preallocate_bytes=1MiB", *failures.SETTINGS)


async def run(folder: Path, on_step: Callable[[Step], None]) -> Steps:
    """Run all steps in a folder, and call `on_step` with each when it is over."""
    async with NodeProcess(folder / DATA, folder / "node.log", SETTINGS) as node:
        with busy("starting a node"):
            ready_ms = await node.start()
        started = Started(node.address, node.http_address, ready_ms)
        on_step(started)
        async with connect(node.address) as client:
            with busy("publishing for later"):
                scheduled = await schedule.publish(client)
            on_step(scheduled)
            with busy("waiting for them to come due") as show:
                fired = await schedule.fire(client, show)
            on_step(fired)
            with busy("failing, waiting, trying again"):
                retried = await failures.retry(client)
            on_step(retried)
            with busy("publishing dead letters again"):
                redriven = await failures.redrive(client)
            on_step(redriven)
            with busy("publishing and consuming") as show:
                crashed, acknowledged = await crash.crash(client, node, show)
            on_step(crashed)
            with busy("reading everything again"):
                replayed = await replay.replay(client, acknowledged)
            on_step(replayed)
        with busy("stopping the node"):
            stopped = Stopped(*await node.stop())
        on_step(stopped)
    with busy("copying a log, flipping a bit, reading all of it"):
        damaged = damage.damage(_log_of(folder / DATA, orders.TOPIC), folder / DAMAGED)
    on_step(damaged)
    with busy("starting three nodes") as show:
        failed_over = await failover.fail_over(folder / CLUSTER, SETTINGS, show)
    on_step(failed_over)
    return Steps(
        started, scheduled, fired, retried, redriven, crashed, replayed, stopped, damaged,
        failed_over,
    )  # fmt: skip


def _log_of(data: Path, topic: str) -> Path:
    """Return the folder of a topic's first partition; topics have folders of their own names."""
    (folder,) = (data / "topics").glob(f"{topic}-*")
    return folder / "0" / "log"
