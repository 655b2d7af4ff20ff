"""A dispatcher or a worker as a process of its own, which tells how it is, once every 50 ms.

python -m tests.dispatch.program dispatcher '{"redis": [...], ...}'
"""

import asyncio
import json
import logging
import sys
from dataclasses import asdict

import uvloop

from waterclock.dispatch import DispatcherConfig, WorkerConfig, run_dispatcher, run_worker
from waterclock.dispatch.dispatcher import Dispatcher
from waterclock.dispatch.worker.worker import Worker

TELL_S = 0.05


def tell(program: Dispatcher | Worker) -> None:
    """Write a line of JSON, and again soon."""
    facts: dict[str, object] = {"counts": asdict(program.counts), "epoch": program.epoch}
    if isinstance(program, Dispatcher):
        facts |= {
            "is_leading": program.is_leading, "workers": program.workers,
            "pending": program.pending, "queued": program.queued, "port": program.address[1],
        }  # fmt: skip
    else:
        facts |= {"is_connected": program.is_connected, "held": program.held}
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    asyncio.get_running_loop().call_later(TELL_S, tell, program)


async def main(kind: str, said: dict[str, object]) -> None:
    """Run the program until it is told to end."""
    said = {
        name: tuple(value) if isinstance(value, list) else value for name, value in said.items()
    }
    if kind == "dispatcher":
        await run_dispatcher(DispatcherConfig(**said), on_ready=tell)  # type: ignore[arg-type]
    else:
        await run_worker(WorkerConfig(**said), on_ready=tell)  # type: ignore[arg-type]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    uvloop.run(main(sys.argv[1], json.loads(sys.argv[2])))
