"""Programs as people write them, run beside a node of their own."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.server.served import serving

PROGRAM_S = 60


def output_beside_node(arguments: Sequence[str], folder: Path) -> str:
    """Run Python with these arguments and a node to connect to; return all it prints."""
    return outputs_beside_node(arguments, folder, times=1)[0]


def outputs_beside_node(arguments: Sequence[str], folder: Path, *, times: int) -> list[str]:
    """Run a program so many times, one after the other, beside the same node."""

    async def run() -> list[str]:
        async with serving(folder / "data") as served:
            address = served.server.addresses.grpc
            return [await _output(arguments, folder, address) for _ in range(times)]

    return asyncio.run(run())


async def _output(arguments: Sequence[str], folder: Path, address: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=folder,
        env=os.environ | {"WATERCLOCK_ADDRESS": address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(PROGRAM_S):
        out, _ = await process.communicate()
    return out.decode()
