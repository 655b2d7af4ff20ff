"""Fifty calls at once on one topic, each key in its order, a bad message aside. Needs a node."""

import asyncio

import waterclock
from waterclock.burrow import PermanentError, Pool, Record, WaterclockSource

BILLS = 1_000


async def main() -> None:
    """Publish bills of ten customers, and work on them side by side."""
    async with waterclock.connect() as client:
        await client.topics.create("bills", partitions=4, if_absent=True)
        bills = [waterclock.Message(b"%d" % n, key=b"%d" % (n % 10)) for n in range(BILLS)]
        await client.publish_many("bills", bills)

        last: dict[bytes | None, int] = {}
        in_order = True
        billed = 0

        async def bill(record: Record) -> None:
            nonlocal in_order, billed
            number = int(record.value or b"")
            if number == 777:
                raise PermanentError("nobody can pay this")
            await asyncio.sleep(0.001)  # ask the bank
            in_order &= last.get(record.key, -1) < number
            last[record.key] = number
            billed += 1
            if billed == BILLS - 1:
                pool.stop()

        source = WaterclockSource("bills", group="billing", client=client)
        pool = Pool(source, bill, workers=50, on_failure="dlq", dead_letters=source)
        await pool.run()

        print("billed:", billed, "each customer in order:", in_order)
        async for letter in client.dead_letters.list("bills"):
            print("dead:", letter.value)
        await client.dead_letters.purge("bills")  # seen to
        print("left over:", (await client.groups.get("bills", "billing")).lag)


if __name__ == "__main__":
    asyncio.run(main())
