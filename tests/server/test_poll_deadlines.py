"""When polls of consumers over HTTP end, on the event loop that nodes run on."""

import asyncio
from types import SimpleNamespace
from typing import Any

import uvloop

from waterclock.server.rest.consumers import HttpConsumers


class Poll:
    """Waits until it is given what there is."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.ended.is_set()

    def take(self, messages: object) -> None:
        self.ended.set()


async def wait_for_two() -> list[bool]:
    """Have two polls wait whose time is up, one right after the other."""
    calls: Any = SimpleNamespace(streaming_calls=set(), is_stopping=False)
    consumer: Any = SimpleNamespace(add=lambda waiter: None, left=lambda: None)
    node: Any = None
    consumers = HttpConsumers(node, calls)
    polls: list[Any] = [Poll(), Poll()]
    for poll in polls:
        consumers.wait(consumer, poll, -1.0)
    for poll in polls:
        await poll.ended.wait()
    return [poll.is_over for poll in polls]


def test_a_poll_may_come_while_the_time_of_another_is_up():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(wait_for_two()) == [True, True]
