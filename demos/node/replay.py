"""The step about the past: everything read again, by a replay that is broken off and goes on."""

import time

from demos.node.orders import TOPIC
from demos.node.steps import Replayed
from waterclock.client.client import Client

NAME = "audit"
CHECKPOINT_EVERY = 500


async def replay(client: Client, expected: set[bytes]) -> Replayed:
    """Read the orders again, in two goes, and look for what is missing or there twice."""
    places: dict[bytes, set[tuple[int, int]]] = {}
    started = time.perf_counter()
    first = await _read(client, places, len(expected) // 2)
    second = await _read(client, places, None)
    return Replayed(
        expected=len(expected),
        found=len(places.keys() & expected),
        stored_twice=sum(len(each) > 1 for each in places.values()),
        broken_off_at=first,
        again=first + second - sum(map(len, places.values())),
        seconds=time.perf_counter() - started,
    )


async def _read(
    client: Client, places: dict[bytes, set[tuple[int, int]]], count: int | None
) -> int:
    """Go on with the replay for so many messages, noting where each is; return how many."""
    read = 0
    async for message in client.replay(TOPIC, name=NAME, checkpoint_every=CHECKPOINT_EVERY):
        if read == count:
            break
        places.setdefault(message.id, set()).add((message.partition, message.offset))
        read += 1
    return read
