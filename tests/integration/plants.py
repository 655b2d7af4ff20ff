"""Bugs on purpose: each makes a node break one guarantee, to see that the oracle notices.

`python -m tests.integration.planted` runs the crash matrix on each and tells what was found.
"""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from waterclock.delivery.cursor import Cursor
from waterclock.log.append import Appended
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.groups import outbound
from waterclock.node.groups.delivery import GroupDelivery
from waterclock.node.groups.saver import GroupSaver
from waterclock.node.groups.session import AnswerKind, QueuedDelivery, Session
from waterclock.node.partition.host import PartitionHost
from waterclock.schedule.hot_timers import HotTimers
from waterclock.server.app import Server
from waterclock.storage.partition_store import PartitionStore


class Plant(NamedTuple):
    """A bug, and by which of its findings the oracle should give it away."""

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


def _swap(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


@_planted("lost publish", "offset reused")
def acks_what_it_did_not_write() -> None:
    """Every thirtieth batch is acknowledged and written nowhere."""
    numbers = count(1)

    def wrap(append: Any) -> Any:
        def broken(self: PartitionHost, batch: Any, **options: Any) -> Any:
            if next(numbers) % 30:
                return append(self, batch, **options)
            end = self.store.end
            return Appended(range(end, end + batch.count), None, self.store.acknowledged_end)

        return broken

    _swap(PartitionHost, "append", wrap)


@_planted("offset reused", "twice in the log")
def forgets_ids() -> None:
    """Every fifth batch is written without a look at what is known."""
    numbers = count(1)

    def wrap(append: Any) -> Any:
        def broken(self: PartitionHost, batch: Any, **options: Any) -> Any:
            if next(numbers) % 5 == 0:
                options["allow_duplicate"] = True
            return append(self, batch, **options)

        return broken

    _swap(PartitionHost, "append", wrap)


@_planted("after cancel", "lost cancel")
def forgets_cancels() -> None:
    """A cancel holds until the node is killed: it is not written."""

    def broken(self: Any, offsets: Any, *, now_ms: int, has_expired: bool = False) -> Any:
        return self.end

    PartitionStore.cancel = broken  # type: ignore[method-assign]


@_planted("early")
def fires_early() -> None:
    """The timers' clock is a little ahead."""

    def wrap(tick: Any) -> Any:
        def broken(self: Any, now_ms: int, limit: int) -> Any:
            return tick(self, now_ms + 150, limit)

        return broken

    _swap(HotTimers, "tick", wrap)


@_planted("twice in the log")
def fires_twice() -> None:
    """Every twentieth firing is written again."""
    numbers = count(1)

    def wrap(fire: Any) -> Any:
        def broken(self: Any, due: Any, *, now_ms: int) -> Any:
            if next(numbers) % 20 == 0:
                fire(self, due, now_ms=now_ms)
            return fire(self, due, now_ms=now_ms)

        return broken

    _swap(PartitionStore, "fire", wrap)


@_planted("not fired", "never done")
def forgets_timers() -> None:
    """One scheduled message in ten gets no timer."""

    def wrap(open_: Any) -> Any:
        def broken(self: Any, offsets: Any, due_ms: Any) -> Any:
            keep = offsets % 10 != 9
            return open_(self, offsets[keep], due_ms[keep])

        return broken

    _swap(HotTimers, "open", wrap)


@_planted("unexplained repeat")
def drops_progress() -> None:
    """What groups have done is never saved."""

    async def broken(self: Any, metadata: Any, hosts: Any) -> None:
        return

    GroupSaver._write_progress = broken  # type: ignore[method-assign]


@_planted("unexplained repeat")
def stops_without_saving() -> None:
    """Progress is saved every second, until the node is told to stop."""
    stopping: list[bool] = []

    def wrap_stop(stop: Any) -> Any:
        async def noted(self: Any) -> None:
            stopping.append(True)
            await stop(self)

        return noted

    def wrap_write(write: Any) -> Any:
        async def broken(self: Any, metadata: Any, hosts: Any) -> None:
            if not stopping:
                await write(self, metadata, hosts)

        return broken

    _swap(Server, "stop", wrap_stop)
    _swap(GroupSaver, "_write_progress", wrap_write)


@_planted("unexplained repeat")
def loses_acks() -> None:
    """One ack in fifty is not heard."""
    numbers = count(1)

    def wrap(answer: Any) -> Any:
        def broken(self: Any, session: Any, kind: Any, *rest: Any, **times: Any) -> None:
            if kind is AnswerKind.ACK and next(numbers) % 50 == 0:
                return
            answer(self, session, kind, *rest, **times)

        return broken

    _swap(GroupDelivery, "answer", wrap)


@_planted("lost delivery", "passed over")
def saves_too_much_progress() -> None:
    """What was handed out counts as done once the node is killed."""

    def wrap(encode: Any) -> Any:
        def broken(self: Any, **shift: Any) -> Any:
            return encode(Cursor(self._config, committed=self.read_from), **shift)

        return broken

    _swap(Cursor, "encode", wrap)


@_planted("out of order")
def hands_out_the_last_first() -> None:
    """Queued messages are overtaken by those that follow."""

    def broken(self: Any, partition: Any, effect: Any) -> None:
        self._queue.appendleft(QueuedDelivery(partition, effect))
        self._wake()

    Session.deliver = broken  # type: ignore[method-assign]


@_planted("dead letters")
def writes_dead_letters_twice() -> None:
    """A dead letter is written under two names."""

    def wrap(write: Any) -> Any:
        async def broken(self: Any, partition: Any, group: str, effect: Any) -> None:
            await write(self, partition, group, effect)
            run_id, partition.run_id = partition.run_id, "another"
            await write(self, partition, group, effect)
            partition.run_id = run_id

        return broken

    _swap(DeadLetters, "write_dead_letters", wrap)


@_planted("after expiry")
def hands_out_what_is_too_late() -> None:
    """Nobody looks at expiry when messages are handed out."""

    def broken(frame: Any, rows: Any, now_ms: int) -> Any:
        return np.ones(len(rows), np.bool_)

    from waterclock.node.groups import fetch_plan

    outbound.in_use_at = broken
    fetch_plan.in_use_at = broken  # type: ignore[attr-defined]
