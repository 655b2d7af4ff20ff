"""Many messages at once: Arrow in, Arrow out, without an object for each. Needs a node."""

import asyncio

import pyarrow as pa

import waterclock


async def main() -> None:
    """Publish a hundred thousand measurements and sum them up."""
    async with waterclock.connect() as client:
        values = [b"%d" % number for number in range(100_000)]
        receipt = await client.publish_arrow("measured", pa.record_batch({"value": values}))
        print("published:", len(receipt))

        total = count = 0
        async with client.subscribe("measured", group="sums", prefetch=10_000) as messages:
            async for batch in messages.batches():
                numbers = batch.rows.column("value").cast(pa.string()).cast(pa.int64())
                total += sum(numbers.to_pylist())
                count += len(batch)
                batch.ack()
                if count == len(values):
                    break
        print("sum:", total)


if __name__ == "__main__":
    asyncio.run(main())
