"""What clients do in a round: senders, receivers that compete, and whoever reads at the end.

Each request goes to a node by chance, also to one that is dying. All that came of it is written
down. What the cluster may have done, or not, is not sent again, but for stored messages: those have
an id, and are sent until they are stored.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from random import Random

from tests.cluster.chaos.history import History, Outcome, Poll, Sent
from tests.cluster.chaos.plan import Plan
from tests.cluster.chaos.requests import Answer, Broken, NotAsked, ask

RING_SIZE = 10_000
"""So large that nothing is overwritten in a round."""
POLL_S = (0.3, 3.0)
HUNG_S = 30.0
"""Past its timeout a poll is waited for so long, to tell how late it was."""
AGAIN_S = 0.1
BAD_REQUEST = (400, 401, 403, 404, 405, 413)
"""What no fault of a cluster explains: the clients here are wrong."""
LIMIT = 500
READ_S_MAX = 30.0


class Node:
    """Whom clients ask."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host


class Load:
    """The clients of a round. `nodes` names those that clients know of at the moment."""

    def __init__(self, plan: Plan, history: History, nodes: Callable[[], Sequence[Node]]) -> None:
        self._plan = plan
        self._history = history
        self._nodes = nodes
        self._rng = Random(f"{plan.seed}:{plan.number}:load")
        self._numbers = itertools.count(1)
        self._is_sending = True
        self._is_receiving = True
        prefix = f"s{plan.seed}-r{plan.number}-{time.time_ns() // 1_000_000}"
        self.work = [f"{prefix}-work-{index}" for index in range(plan.work_streams)]
        self.kept = [f"{prefix}-kept-{index}" for index in range(plan.kept_streams)]
        self.stored = [f"{prefix}-stored-{index}" for index in range(plan.stored_streams)]

    async def send(self) -> None:
        """Send until `stop_sending`."""
        async with asyncio.TaskGroup() as tasks:
            for stream in self.work:
                tasks.create_task(self._send_all(stream, self._history.sent))
            for stream in self.kept:
                tasks.create_task(self._send_all(stream, self._history.kept_sent))
            for stream in self.stored:
                tasks.create_task(self._store_all(stream))

    async def receive(self) -> None:
        """Receive until `stop_receiving`, and each stream to its end."""
        async with asyncio.TaskGroup() as tasks:
            for stream in self.work * self._plan.receivers:
                tasks.create_task(self._receive_all(stream))

    def stop_sending(self) -> None:
        """Let the senders end after what they are at."""
        self._is_sending = False

    def stop_receiving(self) -> None:
        """Let each receiver end once its stream says that there is nothing."""
        self._is_receiving = False

    async def watch_lag(self) -> None:
        """Measure how late this side itself is, until cancelled."""
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.1)
            late_s = time.monotonic() - begun - 0.1
            self._history.lag_s = max(self._history.lag_s, late_s)

    # Senders

    def _node(self) -> Node:
        return self._rng.choice(self._nodes())

    async def _send_all(self, stream: str, sent: list[Sent]) -> None:
        while self._is_sending:
            node, n, from_s = self._node(), next(self._numbers), time.monotonic()
            words = {"streamId": stream, "message": n, "inMemoryStreamSize": RING_SIZE}
            outcome = await self._sent(node, "/streams/send", {**words, "timeout": "3s"})
            if outcome is not None:
                sent.append(Sent(n, stream, node.name, from_s, time.monotonic(), outcome))
            await asyncio.sleep(self._pause_s())

    async def _sent(self, node: Node, path: str, words: object) -> Outcome | None:
        """Send a message; None if there is nobody to send it to."""
        try:
            answer = await ask(node.host, "POST", path, words, within_s=HUNG_S)
        except NotAsked:
            return None
        except Broken:
            return Outcome.UNSURE
        assert answer.status not in BAD_REQUEST, answer
        return _outcome(answer)

    async def _store_all(self, stream: str) -> None:
        while self._is_sending:
            n, from_s = next(self._numbers), time.monotonic()
            node, outcome, position = await self._store(stream, n)
            sent = Sent(n, stream, node.name, from_s, time.monotonic(), outcome, position)
            self._history.stored_sent.append(sent)
            await asyncio.sleep(self._pause_s())

    async def _store(self, stream: str, n: int) -> tuple[Node, Outcome, int]:
        words = {"streamId": stream, "message": n, "messageUuid": f"m{n}"}
        while True:
            node = self._node()
            try:
                answer = await ask(node.host, "POST", "/streams/sendAndStore", words)
                if answer.status == 201:
                    return node, Outcome.DONE, answer.value["position"]
            except (NotAsked, Broken):
                pass
            if not self._is_sending:
                return node, Outcome.UNSURE, 0
            await asyncio.sleep(AGAIN_S)

    def _pause_s(self) -> float:
        return self._plan.pause_ms / 1_000 * self._rng.uniform(0.2, 1.8)

    # Receivers

    async def _receive_all(self, stream: str) -> None:
        while True:
            is_last = not self._is_receiving
            poll = await self._poll(stream)
            self._history.polls.append(poll)
            if poll.outcome is not Outcome.DONE:
                if is_last and poll.outcome is Outcome.NOT:
                    return
                await asyncio.sleep(AGAIN_S / 2)

    async def _poll(self, stream: str) -> Poll:
        node, from_s = self._node(), time.monotonic()
        timeout_s = self._rng.uniform(*POLL_S)
        path = f"/streams/receive?streamId={stream}&timeout={round(timeout_s * 1_000)}ms"
        n, said = None, ""
        try:
            answer = await ask(node.host, "GET", path, within_s=timeout_s + HUNG_S)
            outcome, said = _outcome(answer), f"{answer.status}"
            if answer.status == 200:
                n = answer.value["message"]
            elif answer.value is not None:
                said = f"{answer.status} {answer.value.get('error')}"
        except NotAsked:
            outcome = Outcome.NOT
        except Broken as error:
            outcome, said = Outcome.UNSURE, str(error)
        return Poll(stream, node.name, from_s, time.monotonic(), timeout_s, outcome, n, said)

    # At the end

    async def read(self) -> None:
        """Read what is in memory and what is stored, from the first message on."""
        async with asyncio.timeout(READ_S_MAX):
            for stream in self.kept:
                self._history.kept[stream] = [n for _, n in await self._all_of(stream)]
            for stream in self.stored:
                self._history.stored[stream] = await self._all_of(stream)

    async def _all_of(self, stream: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        token = "earliest"
        while True:
            query = f"streamId={stream}&limit={LIMIT}&timeout=1ms&resumeToken={token}"
            try:
                answer = await ask(self._node().host, "GET", f"/streams/receive?{query}")
            except (NotAsked, Broken):
                continue
            if answer.status == 200:
                found += [(each["position"], each["message"]) for each in answer.value["messages"]]
            elif answer.status == 424 and answer.value["error"] == "MatchTimeout":
                return found
            elif answer.status == 410:  # it has moved, or begun anew: what was read is of before
                found.clear()
                token = "earliest"
                await asyncio.sleep(AGAIN_S)
                continue
            else:
                await asyncio.sleep(AGAIN_S)
                continue
            token = answer.value["resumeToken"]


def _outcome(answer: Answer) -> Outcome:
    if answer.status == 200:
        return Outcome.DONE
    # What a node that stops or does not hear from the owner says: it may have been done.
    return Outcome.UNSURE if answer.status >= 500 else Outcome.NOT
