"""What the other nodes have counted, asked once a tick for all pages.

A node that has a link and says nothing would hold up every tick. So it is waited for once: from
then on it is asked, nobody waits for its answer, and pages are told that it does not answer, until
it answers in time again. At most one question of a kind is under way to a node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from waterclock.server.http.messages import Response

ANSWER_S = 2.0
"""How long another node is waited for: pages are told without it then, and that it is missing."""

Ask = Callable[[str, bool], Awaitable[Response | None]]
Spawn = Callable[[Coroutine[None, None, None]], object]
Answer = asyncio.Future[Response | None]


class OtherNodes:
    """Asks nodes for their counts, and knows which of them are slow."""

    def __init__(self, ask: Ask, spawn: Spawn) -> None:
        self._ask = ask
        self._spawn = spawn
        self._asked: dict[tuple[str, bool], Answer] = {}
        self.slow: set[str] = set()
        """Those that have not answered in time when they were last asked."""

    def __repr__(self) -> str:
        return f"<OtherNodes {len(self._asked)} asked, {len(self.slow)} slow>"

    async def counts(self, names: Sequence[str], *, has_dead: bool) -> dict[str, bytes]:
        """Return what those say they have counted that answer in time, by name."""
        self.slow &= {*names}
        answers = {name: self._asked_for(name, has_dead) for name in names}
        waited = [answers[name] for name in names if name not in self.slow]
        if waited:
            await asyncio.wait(waited, timeout=ANSWER_S)
        self.slow |= {name for name in names if not answers[name].done()}
        heard = {name: each.result() for name, each in answers.items() if name not in self.slow}
        return {
            name: answer.body
            for name, answer in heard.items()
            if answer is not None and answer.status == 200
        }

    def _asked_for(self, name: str, has_dead: bool) -> Answer:
        """Return the answer that is to come, asked for now if it was not yet."""
        found = self._asked.get((name, has_dead))
        if found is None:
            found = asyncio.get_running_loop().create_future()
            self._asked[name, has_dead] = found
            self._spawn(self._put(name, has_dead, found))
        return found

    async def _put(self, name: str, has_dead: bool, answered: Answer) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            answer = await self._ask(name, has_dead)
        except Exception as error:  # for whoever waits, and not for the node
            answered.set_exception(error)
        else:
            if answer is not None and loop.time() - began <= ANSWER_S:
                self.slow.discard(name)
            answered.set_result(answer)
        finally:
            del self._asked[name, has_dead]
            answered.cancel()  # the node stops
