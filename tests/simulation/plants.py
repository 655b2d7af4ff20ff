"""Bugs on purpose, most of them of a kind that was there once: the histories must find each.

A plant takes away one thing that keeps a guarantee, and nothing else.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from waterclock.delivery.leases import Leases
from waterclock.log import scheduled
from waterclock.log.id_index.index import IdIndex
from waterclock.model.clock import RunningClock
from waterclock.node.schedule import named_changes
from waterclock.node.schedule.named_changes import NamedChanges
from waterclock.schedule.hot_timers import HotTimers
from waterclock.server.rest.consumer import HttpConsumer
from waterclock.storage.partition_store import PartitionStore

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTS: list[Plant] = []


def planted(plant: Plant) -> Plant:
    """Put a bug among the others."""
    PLANTS.append(plant)
    return plant


def swap(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, wrap: Callable[[Any], Any]
) -> None:
    """Replace a function by what is made of it."""
    monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))


# Cancelling and moving by id


@planted
def duplicates_cannot_be_found_by_their_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index takes only ids that were published without `allowDuplicate`."""

    def wrap(remember: Any) -> Any:
        def lax(self: IdIndex, fps: Any, written: Any, *, is_tracked: bool) -> None:
            if is_tracked:
                remember(self, fps, written, is_tracked=is_tracked)

        return lax

    swap(monkeypatch, IdIndex, "remember", wrap)


@planted
def a_search_ends_in_the_first_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one partition has of an id is changed, and the others are not asked."""

    def wrap(places: Any) -> Any:
        async def lax(self: NamedChanges, topic: Any, named: Any) -> Any:
            found = await places(self, topic, named)
            firsts = [found.where[found.rows == row].min() for row in found.rows]
            is_first = found.where == np.array(firsts, np.int64)
            return found._make(column[is_first] for column in found)

        return lax

    swap(monkeypatch, NamedChanges, "_places", wrap)


@planted
def a_key_does_not_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key beside an id is not looked at."""
    swap(
        monkeypatch,
        named_changes,
        "_asked",
        lambda asked: lambda named: asked([name._replace(key=None) for name in named]),
    )


@planted
def a_cancel_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds until the node is killed."""
    monkeypatch.setattr(PartitionStore, "cancel", lambda self, offsets, **how: self.end)


@planted
def what_did_not_fire_is_reported_as_fired(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a message ended is not remembered."""
    swap(
        monkeypatch,
        PartitionStore,
        "endings",
        lambda endings: lambda self, offsets: np.zeros_like(endings(self, offsets)),
    )


@planted
def the_end_of_a_message_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with an expiry is rescheduled, and its expiry is not."""
    monkeypatch.setattr(scheduled, "moved", lambda rows, by_ms: rows)


# Time


@planted
def fired_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timers' clock is a little ahead."""
    swap(
        monkeypatch,
        HotTimers,
        "tick",
        lambda tick: lambda self, now_ms, limit: tick(self, now_ms + 150, limit),
    )


@planted
def leases_go_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that polls has its leases compared with a clock that can be set."""

    def wrap(init: Any) -> Any:
        def lax(self: Any, key: Any, session: Any, clock: Any, **options: Any) -> None:
            init(self, key, session, clock._clock, **options)

        return lax

    swap(monkeypatch, HttpConsumer, "__init__", wrap)


@planted
def a_pause_counts_against_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in which the node did not run is taken for silence of those it did not hear."""
    monkeypatch.setattr(RunningClock, "pulse", lambda self, cpu_ms: None)


@planted
def a_lost_owner_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a member held whose connection broke has failed, though nobody asked for that."""

    def wrap(lose: Any) -> Any:
        def lax(self: Leases, *args: Any, **options: Any) -> Any:
            self.config = replace(self.config, count_lost_owners=True)
            return lose(self, *args, **options)

        return lax

    swap(monkeypatch, Leases, "lose", wrap)
