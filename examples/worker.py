"""A worker with retries: what fails comes again, what is hopeless goes to the dead letters.

Needs a node: `waterclock up`. Start as many workers as you like: the partitions of the topic are
divided among the members of a group.
"""

import asyncio
from collections.abc import AsyncIterator

import waterclock
from waterclock import Message, ReceivedMessage


async def work(message: ReceivedMessage) -> None:
    """Do what a message asks for."""
    match message.value:
        case b"flaky" if message.attempt == 1:
            raise ConnectionError("try again")
        case b"nonsense":
            raise ValueError("nobody can do this")
        case value:
            print("done:", value, "at attempt", message.attempt)


async def handle(messages: AsyncIterator[ReceivedMessage], count: int) -> None:
    """Work on messages until so many are settled."""
    async for message in messages:
        try:
            await work(message)
        except ValueError as error:
            print("rejected:", message.value, error)
            message.reject()
        except ConnectionError as error:
            print("failed:", message.value, error)
            message.nack(retry_in="1s")
            continue
        else:
            message.ack()
        count -= 1
        if not count:
            return


async def main() -> None:
    """Publish some work, do it, and look at what could not be done."""
    async with waterclock.connect() as client:
        jobs = [Message(value) for value in (b"easy", b"nonsense", b"flaky")]
        await client.publish_many("work", jobs)
        # keep_alive: a message may take longer than its lease.
        async with client.subscribe("work", group="workers", keep_alive=True) as messages:
            await handle(messages, count=len(jobs))
        async for letter in client.dead_letters.list("work"):
            print("dead:", letter.value, letter.reason)
        await client.dead_letters.purge("work")  # or the next run lists it too


if __name__ == "__main__":
    asyncio.run(main())
