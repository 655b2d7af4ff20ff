"""A node for tests, as a process of its own: any settings, another clock, a bug on purpose.

Told what to be by one JSON argument, it says on stdout where it can be reached, as
`waterclock up --json` does. Settings are not held to what an operator may ask for: tests roll
segments of a few KiB. It ends with the process that started it.
"""

import asyncio
import ctypes
import errno
import json
import logging
import mmap
import os
import signal
import struct
import sys
import time
from typing import Any, get_type_hints

import uvloop

from tests.backup import plants as backup_plants
from tests.integration.plants import plant
from tests.kit.async_fsyncs import ThreadKernel
from waterclock.model.config import Config
from waterclock.model.errors import WaterclockError
from waterclock.model.ids import Millis
from waterclock.node import log_cleaner
from waterclock.node import node as nodes
from waterclock.runtime.clock import SystemClock
from waterclock.server import process as launch
from waterclock.server.addresses import Addresses

PR_SET_PDEATHSIG = 1
REFUSED = 3
"""The exit code when the node says what is wrong."""


class SteppedClock(SystemClock):
    """The computer's clock, as many milliseconds off as the first 8 bytes of a file say."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._ahead_ms = mmap.mmap(file.fileno(), 8)

    def now_ms(self) -> Millis:
        """Return the time as it stands after all steps so far."""
        return Millis(super().now_ms() + struct.unpack("<q", self._ahead_ms)[0])


def trouble_disk(path: str, *, is_kernels: bool) -> None:
    """Have every fsync of a file wait while there is a file at `path`, or fail if that says so.

    `is_kernels`: the few are begun by the loop, and end by themselves.
    """
    vars(nodes)["aio_at"] = lambda _: ThreadKernel() if is_kernels else None
    flush = os.fdatasync

    def troubled(number: int) -> None:
        while os.path.exists(path):
            with open(path) as file:
                if file.read() == "fail":
                    raise OSError(errno.EIO, "the disk is broken, for a test")
            time.sleep(0.01)
        flush(number)

    vars(os)["fdatasync"] = troubled


def config_of(settings: dict[str, dict[str, Any]]) -> Config:
    """Return a configuration from sections and their fields."""
    sections = get_type_hints(Config)
    return Config(**{name: sections[name](**fields) for name, fields in settings.items()})


def main(options: dict[str, Any]) -> None:
    """Run until a signal."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if options.get("clock_file"):
        vars(launch)["SystemClock"] = lambda: SteppedClock(options["clock_file"])
    if options.get("cleaner_ms"):
        log_cleaner.EVERY_MS = options["cleaner_ms"]
    if options.get("trouble_file"):
        trouble_disk(options["trouble_file"], is_kernels=options["is_kernels"])
    if options.get("plant"):
        plant(options["plant"])
    if options.get("backup_plant"):
        backup_plants.plant(options["backup_plant"])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(launch.run_node(config_of(options["settings"]), on_ready=_tell))
    except WaterclockError as error:
        logging.exception("refused")
        sys.exit(f"{type(error).__name__}: {error}" if str(error) else REFUSED)


def _tell(addresses: Addresses) -> None:
    # Asked by SIGUSR1, it says how many tasks there are.
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGUSR1, lambda: _say({"tasks": len(asyncio.all_tasks())})
    )
    _say({"grpc_port": addresses.grpc_port, "http_port": addresses.http_port})


def _say(facts: dict[str, int]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
