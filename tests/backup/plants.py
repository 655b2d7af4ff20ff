"""Bugs on purpose in how a node is cut: each must be found in what is restored."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import structs

from waterclock.model.backup import META
from waterclock.node.backup import live
from waterclock.node.node import Node
from waterclock.server.grpc import backup as api

LATE_S = 0.3


class Plant(NamedTuple):
    """A bug, and by which of its findings the judge should give it away."""

    put: Callable[[], None]
    gives_away: frozenset[str]


PLANTS: dict[str, Plant] = {}


def plant(name: str) -> None:
    """Break this process's node in the way named."""
    PLANTS[name].put()


def _planted(*gives_away: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def keep(put: Callable[[], None]) -> Callable[[], None]:
        PLANTS[put.__name__] = Plant(put, frozenset(gives_away))
        return put

    return keep


@_planted("broken topic", "lost delivery", "lost redrive")
def cuts_the_records_later() -> None:
    """The partitions are cut, then, a moment later, the records that speak of them."""

    async def broken(node: Node) -> live.LiveCut:
        cut = await live.take_cut(node)
        await asyncio.sleep(LATE_S)
        later = await live.take_cut(node)
        (meta, *_), (_, *rest) = later.cut.logs, cut.cut.logs
        assert meta.path == META
        before = len(cut.cut.logs[0].segments)
        cut._numbers = later._numbers[: len(meta.segments)] + cut._numbers[before:]
        cut._pins.push(later._pins)
        cut.cut = structs.replace(cut.cut, logs=(meta, *rest))
        return cut

    vars(api)["take_cut"] = broken


@_planted("lost publish")
def stops_at_sealed_segments() -> None:
    """What the active segment of a partition holds is left out."""

    def wrap(logs_of: Any) -> Any:
        def broken(node: Node) -> Any:
            for path, store, end in logs_of(node):
                is_topic = path.startswith("topics/")
                yield path, store, store.segments[-1].base_offset if is_topic else end

        return broken

    vars(live)["_logs_of"] = wrap(live._logs_of)


@_planted("lost progress")
def leaves_progress_in_memory() -> None:
    """What groups have done since it was last saved is left out."""

    async def broken(node: Node) -> live.LiveCut:
        return live.LiveCut(node)

    vars(api)["take_cut"] = broken


@_planted("lost topic", "lost recurrence", "broken topic")
def cuts_the_records_too_soon() -> None:
    """The records are those of the first backup that was taken."""
    first: list[live.LiveCut] = []

    async def broken(node: Node) -> live.LiveCut:
        cut = await live.take_cut(node)
        if not first:
            first.append(await live.take_cut(node))
        (meta, *_), (_, *rest) = first[0].cut.logs, cut.cut.logs
        before = len(cut.cut.logs[0].segments)
        cut._numbers = first[0]._numbers[: len(meta.segments)] + cut._numbers[before:]
        cut.cut = structs.replace(cut.cut, logs=(meta, *rest))
        return cut

    vars(api)["take_cut"] = broken
