"""What has happened to all streams of a node, in plain integers."""

from dataclasses import dataclass


@dataclass(slots=True)
class StreamCounters:
    """What has happened, for metrics."""

    sent: int = 0
    received: int = 0
    polled: int = 0
    """Polls that were answered with messages."""
    matched: int = 0
    """Messages for which a receiver was waiting."""
    overwritten: int = 0
    missed: int = 0
    send_timeouts: int = 0
    receive_timeouts: int = 0
    given_back: int = 0
    forgotten: int = 0
