"""A node is killed while streams are stored: what was answered is there, once, in order."""

import asyncio
import json
from pathlib import Path
from random import Random

from tests.integration.node_process import NodeProcess
from tests.server.http_client import raw_client

STREAMS = ("one", "two")
ROUNDS = 4


async def store(port: int, stream: str, number: int) -> bool:
    """Store a message; tell whether the node said that it is."""
    body = json.dumps({"streamId": stream, "message": number, "messageUuid": f"u{number}"}).encode()
    head = "POST /streams/sendAndStore HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    try:
        async with raw_client(port) as client:
            answer = await client.ask(head.encode() + body)
    except (OSError, EOFError):
        return False
    return answer.status == 201


async def everything(port: int, stream: str) -> list[tuple[int, int]]:
    """Read a stream to its end: positions and messages."""
    found: list[tuple[int, int]] = []
    token = "earliest"
    async with raw_client(port) as client:
        while True:
            query = f"streamId={stream}&limit=100&timeout=1ms&resumeToken={token}"
            answer = await client.get(f"/streams/receive?{query}")
            if answer.status == 424:
                return found
            page = answer.json()
            found += [(each["position"], each["message"]) for each in page["messages"]]
            token = page["resumeToken"]


async def ready(port: int) -> None:
    """Return when the store takes messages."""
    while not await store(port, "warm-up", 0):  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.01)


async def test_what_was_stored_outlives_kills(tmp_path: Path):
    rng = Random(31)
    stored: dict[str, set[int]] = {stream: set() for stream in STREAMS}

    async def produce(port: int, stream: str, numbers: range) -> None:
        for number in numbers:
            if not await store(port, stream, number):
                return
            stored[stream].add(number)

    async def live(node: NodeProcess) -> None:
        for turn in range(ROUNDS):
            await node.start()
            await ready(node.http_port)
            numbers = range(turn * 10_000, (turn + 1) * 10_000)
            async with asyncio.TaskGroup() as tasks:
                for stream in STREAMS:
                    tasks.create_task(produce(node.http_port, stream, numbers))
                await asyncio.sleep(rng.uniform(0.1, 0.5))
                await node.kill()
        await node.start()
        await ready(node.http_port)
        for stream in STREAMS:
            found = await everything(node.http_port, stream)
            messages = [message for _, message in found]
            assert stored[stream] <= set(messages), "acknowledged and lost"
            assert [at for at, _ in found] == list(range(1, len(found) + 1)), "a hole"
            assert messages == sorted(set(messages)), "twice, or out of order"
        assert node.bugs() == [], node.last_words(40)

    node = NodeProcess(tmp_path, {"log": {"preallocate_bytes": 64 << 10}})
    try:
        async with asyncio.timeout(60):
            await live(node)
    finally:
        await node.kill()
    assert all(len(numbers) > ROUNDS for numbers in stored.values())
