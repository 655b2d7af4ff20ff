"""Messages for the tests: sent in the way of each source, and counted where they must arrive."""

import json
from collections.abc import Iterable
from typing import Any

import redis

from tests.dispatch.programs import Program, wait

SOURCE_KINDS = ["stream", "pubsub"]


def send(look: Any, source_kind: str, key: str, messages: Iterable[Any]) -> None:
    """Publish messages in the way of the source."""
    with look.pipeline(transaction=False) as pipe:
        for message in messages:
            body = message if isinstance(message, bytes) else json.dumps(message)
            if source_kind == "stream":
                pipe.xadd(key, {"data": body})
            else:
                pipe.publish(key, body)
        pipe.execute()


def numbers(look: Any, key: str) -> list[int]:
    """Return the numbers of all entries that were written, as they were."""
    return [int(fields[b"n"]) for _, fields in look.xrange(key)]


def ready(dispatcher: Program, *, workers: int = 0) -> None:
    """Return once it leads and has so many workers."""
    wait(lambda: dispatcher.said.get("is_leading"), what="a leader")
    wait(lambda: dispatcher.said.get("workers") == workers, what=f"{workers} workers")


def listening(look: Any, channel: str, *, count: int = 1) -> None:
    """Return once so many listen to a channel."""
    wait(lambda: dict(look.pubsub_numsub(channel))[channel.encode()] == count, what="listeners")


def leader_of(dispatchers: Iterable[Program]) -> Program:
    """Return the one that leads, once there is one."""
    every = list(dispatchers)
    wait(lambda: any(each.said.get("is_leading") for each in every), what="a leader")
    return next(each for each in every if each.said.get("is_leading"))


def keep_trying(look: redis.Redis, key: str, messages: Iterable[Any]) -> None:
    """Add messages to a stream one by one, each until the server has it."""
    for message in messages:
        while True:
            try:
                look.xadd(key, {"data": json.dumps(message)})
                break
            except redis.RedisError:
                continue
