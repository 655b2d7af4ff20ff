"""`waterclock demo-writer`: the process that the demo kills. Hidden: nobody else needs it.

It publishes small batches and tells of each, in one line on stdout, once it is durable: that line
is the acknowledgement which the demo holds it to. It ends by itself if nobody listens any more.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

BATCHES_MAX = 20_000
"""Nobody kills it that long: end, before the disk is full."""


def demo_writer(folder: Annotated[Path, typer.Argument(help="The folder of a log.")]) -> None:
    """Publish until killed, and print `OFFSET NUMBER COUNT` for each batch that is durable."""
    from waterclock.cli.tour import CRASH_BATCH, LOG, crash_message
    from waterclock.storage.local_log import open_log

    with open_log(folder, log=LOG) as log:
        for number in range(0, BATCHES_MAX * CRASH_BATCH, CRASH_BATCH):
            messages = [crash_message(n) for n in range(number, number + CRASH_BATCH)]
            appended = log.publish(messages)
            # One write of one line: the reader never sees half of it.
            line = f"{appended.offsets[0]} {number} {CRASH_BATCH}\n"
            os.write(1, line.encode())
