"""Handlers for tests, found by their name in the processes of workers."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

from waterclock.dispatch import Delivery, PermanentError


def copy(message: dict[str, object]) -> dict[str, object]:
    """Write what came."""
    return message


async def copy_later(message: dict[str, object]) -> dict[str, object]:
    """Write what came, after a turn of the loop."""
    await asyncio.sleep(0)
    return message


def picky(message: dict[str, object], delivery: Delivery) -> dict[str, object] | bytes | None:
    """Do with a message what it says."""
    match message.get("do"):
        case "skip":
            return None
        case "bytes":
            return b"raw"
        case "permanent":
            raise PermanentError("cannot be")
        case "always":
            raise ValueError("not this time")
        case "second" if delivery.deliveries < 2:
            raise ValueError("not the first time")
        case "bad value":
            return {"object": object()}
    return {"n": message["n"], "deliveries": delivery.deliveries}


def slow(message: dict[str, object]) -> dict[str, object]:
    """Take as long as the message says, once for all workers that share its file."""
    time.sleep(float(str(message.get("seconds", 0))))
    return {"n": message["n"], "pid": os.getpid()}


def die_first(message: dict[str, object]) -> dict[str, object]:
    """Be killed with the worker at the first message that says so, before anything is written."""
    if "die" in message:
        try:
            Path(str(message["die"])).touch(exist_ok=False)
        except FileExistsError:
            return {"n": message["n"]}
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    return {"n": message["n"]}


def deadly(message: dict[str, object]) -> dict[str, object]:
    """Kill every worker that takes a message that says so."""
    if message.get("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    return {"n": message["n"]}


def picky_and_slow(message: dict[str, object], delivery: Delivery) -> object:
    """Be picky, and slow if the message says so."""
    time.sleep(float(str(message.get("seconds", 0))))
    return picky(message, delivery)
