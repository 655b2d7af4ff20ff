"""All acts played in order, on a node of their own, each told when it is over."""

from collections.abc import Callable
from pathlib import Path

from waterclock.cli.output.terminal import busy
from waterclock.cli.tour import failing, killing, replaying, rotting, timely
from waterclock.cli.tour.acts import Act, Acts, Started, Stopped
from waterclock.cli.tour.node_process import NodeProcess
from waterclock.client.client import connect

DATA = "node"
"""Below the demo's folder: what the node keeps."""
DAMAGED = "damaged"
SETTINGS = ("log.preallocate_bytes=1MiB", *failing.SETTINGS)


async def play(folder: Path, tell: Callable[[Act], None]) -> Acts:
    """Play all acts in a folder, telling of each when it is over."""
    async with NodeProcess(folder / DATA, folder / "node.log", SETTINGS) as node:
        with busy("starting a node"):
            ready_ms = await node.start()
        started = Started(node.address, node.http_address, ready_ms)
        tell(started)
        async with connect(node.address) as client:
            with busy("publishing for later"):
                promised = await timely.promise(client)
            tell(promised)
            with busy("waiting for them to come due") as show:
                fired = await timely.fire(client, show)
            tell(fired)
            with busy("failing, waiting, trying again"):
                retried = await failing.retry(client)
            tell(retried)
            with busy("publishing dead letters again"):
                redriven = await failing.redrive(client)
            tell(redriven)
            with busy("publishing and consuming") as show:
                crashed, acknowledged = await killing.crash(client, node, show)
            tell(crashed)
            with busy("reading everything again"):
                replayed = await replaying.replay(client, acknowledged)
            tell(replayed)
        with busy("stopping the node"):
            stopped = Stopped(*await node.stop())
        tell(stopped)
    with busy("copying a log, flipping a bit, reading all of it"):
        rotted = rotting.rot(_log_of(folder / DATA, killing.TOPIC), folder / DAMAGED)
    tell(rotted)
    return Acts(started, promised, fired, retried, redriven, crashed, replayed, stopped, rotted)


def _log_of(data: Path, topic: str) -> Path:
    """Return the folder of a topic's first partition; topics have folders of their own names."""
    (folder,) = (data / "topics").glob(f"{topic}-*")
    return folder / "0" / "log"
