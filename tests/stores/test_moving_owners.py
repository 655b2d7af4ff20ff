"""Nodes share a store: streams keep their positions while they go from one node to another, also
from one that is killed under load."""

import asyncio
import os
import signal
from collections import defaultdict
from contextlib import ExitStack

import pytest

from tests.cluster.joined import JoinedNode, joined_node, node_process
from tests.server.http_client import until
from tests.stores.backend import WITH_SERVER, Backend, opened
from waterclock.model.sections import StreamsConfig

STREAMS = 8
SENDERS = 4
STAGE = 40
"""Messages that are stored between two changes."""
AGAIN = (424, 503)
"""The owner is away, or nobody knows whether it has stored the message: send it again."""


class Load:
    """Sends messages to be stored through one node, each until it is."""

    def __init__(self, node: JoinedNode) -> None:
        self._node = node
        self._numbers = iter(range(1_000_000))
        self.stored: dict[str, dict[str, int]] = defaultdict(dict)
        """Positions by stream and id."""
        self.count = 0

    async def run(self) -> None:
        for number in self._numbers:
            stream, uuid = f"s{number % STREAMS}", f"m{number}"
            body = {"streamId": stream, "message": number, "messageUuid": uuid}
            answer = await self._node.post("/streams/sendAndStore", **body)
            while answer.status in AGAIN:
                answer = await self._node.post("/streams/sendAndStore", **body)
            assert answer.status == 201, answer.body
            self.stored[stream][uuid] = answer.json()["position"]
            self.count += 1

    async def more(self) -> None:
        """Wait until there are some more."""
        aim = self.count + STAGE
        await until(lambda: self.count >= aim)


IS_WHOLE = bool(os.environ.get("WATERCLOCK_STORES_BIG"))
MOVED = [each for each in WITH_SERVER if IS_WHOLE or each.values[0] in ("postgres", "mongodb")]
"""A node does the same with each; that its writers may change, test_writers shows of all. `make
stores-big` has the others."""


@pytest.mark.parametrize("backend", MOVED, indirect=True)
async def test_positions_stay_dense_while_streams_go_from_node_to_node(
    backend: Backend, url: str, tmp_path
):
    async with joined_node(tmp_path, "a", streams=StreamsConfig(store=url)) as a:
        load = Load(a)
        senders = [asyncio.ensure_future(load.run()) for _ in range(SENDERS)]
        await load.more()
        with ExitStack() as stack:
            for end in (signal.SIGKILL, signal.SIGTERM):
                process = stack.enter_context(node_process(tmp_path, "b", a, store=url))
                await until(lambda: a.ring == ("a", "b"))
                await load.more()
                process.send_signal(end)
                await until(lambda: a.ring == ("a",))
                await load.more()
                await asyncio.to_thread(process.wait)
        for sender in senders:
            sender.cancel()
        results = await asyncio.gather(*senders, return_exceptions=True)
        assert {type(each) for each in results} == {asyncio.CancelledError}, results

    forwarder = a.clustered.cluster.forwarder
    assert forwarder is not None
    assert forwarder.forwarded > STAGE / 2, "b was asked"
    async with opened(url) as store:
        for stream, stored in load.stored.items():
            page = await store.read(stream, after=0, limit=10_000, now_ms=0)
            kept = {each.message_id: each.position for each in page.messages}
            assert sorted(kept.values()) == list(range(1, len(page.messages) + 1))
            assert kept.items() >= stored.items()
