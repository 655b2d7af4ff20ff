"""The job as our workers run it, and its messages as anyone sends them."""

from pathlib import Path
from typing import Any

from benchmarks.client import Stopwatch
from benchmarks.dispatch_load import body, write_commands

STREAM, CHANNEL = "input", "readings"


def handle(message: dict[str, Any]) -> dict[str, Any]:
    """Do the job: what it returns is what the worker adds to the output stream."""
    return message


def stream(watch: Stopwatch, port: int, *, file: str, first: int, count: int) -> None:
    """Write down what adds so many messages to the stream."""
    numbers = range(first, first + count)
    write_commands(Path(file), [("XADD", STREAM, "*", "data", body(n)) for n in numbers])


def pubsub(watch: Stopwatch, port: int, *, file: str, first: int, count: int) -> None:
    """Write down what publishes so many messages on the channel."""
    numbers = range(first, first + count)
    write_commands(Path(file), [("PUBLISH", CHANNEL, body(n)) for n in numbers])
