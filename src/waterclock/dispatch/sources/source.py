"""Where messages come from: what a leader asks of a source, and a source of its leader."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from waterclock.dispatch.core.batches import DeadLetter, Load
from waterclock.dispatch.frames import uuid_text
from waterclock.dispatch.redis.link import RedisAway, Word
from waterclock.model.waiting import Waiting

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

AGAIN_S = 0.05
"""How long to wait before Redis, which was away, is asked again."""


class Intake(Protocol):
    """The leader, as its source sees it."""

    epoch: int

    @property
    def room(self) -> int:
        """How many messages it would take now."""
        ...

    @property
    def appetite(self) -> int:
        """How many messages it makes sense to bring now: somewhat more than workers can take. What
        is left where it is costs no memory, and a successor need not claim it."""
        ...

    async def until_room(self) -> None:
        """Return when there is room, and appetite, again."""
        ...

    def add(self, load: Load) -> None:
        """Take in messages, which are kept in Redis until they are settled."""
        ...


class Source(Protocol):
    """Brings messages to the leader, and keeps in Redis what is not done."""

    @property
    def fences(self) -> Sequence[str]:
        """Fences that a new leader must raise before it does anything."""
        ...

    @property
    def handicap_ms(self) -> int:
        """How long to let other dispatchers go first when the lease is free: 0 if nobody could go
        on better than we."""
        ...

    async def listen(self) -> None:
        """Do what must be done also while another dispatcher leads, until cancelled."""
        ...

    async def lead(self, intake: Intake) -> None:
        """Take over what the last leader left, then bring what comes, until cancelled. Raises
        `Stale` if another dispatcher leads."""
        ...

    async def settle(
        self, epoch: int, *, stored_batches: Sequence[bytes], entries: Sequence[bytes]
    ) -> None:
        """Forget messages that are done. May raise `Stale` or `RedisAway`."""
        ...

    async def write_dead_letters(self, epoch: int, dead_letters: Sequence[DeadLetter]) -> None:
        """Write messages to the dead stream, each once. May raise the same."""
        ...


def dead_letter_args(dead: DeadLetter) -> list[Word]:
    """Return a dead letter as the words of a stream entry, their number first."""
    args: list[Word] = [
        "uuid", uuid_text(dead.uuid), "reason", dead.reason, "deliveries", dead.deliveries,
        "birth_ms", dead.birth_ms, "body", dead.body,
    ]  # fmt: skip
    return [len(args), *args]


async def until_answered(step: Callable[[], Awaitable[Answer]]) -> Answer:
    """Do something until Redis answers. A leader whom it does not answer loses its lease, and is
    cancelled: that ends this."""
    waiting = Waiting("Redis")
    while True:
        try:
            answer = await step()
        except RedisAway as away:
            said = waiting.away(str(away), asyncio.get_running_loop().time())
        else:
            said = waiting.here(asyncio.get_running_loop().time())
            if said is not None:
                log.warning("%s", said)
            return answer
        if said is not None:
            log.warning("%s", said)
        await asyncio.sleep(AGAIN_S)
