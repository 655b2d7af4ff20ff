"""From one Kafka topic to another, exactly once: outputs and offsets are one transaction.

Needs `pip install 'waterclock[kafka]'` and a broker, at localhost:9092 or where KAFKA says. Kill it
and start it again as often as you like: `receipts` has one for each payment.
"""

import asyncio
import os

from confluent_kafka import Producer

from waterclock.burrow import KafkaTransactions, Output, Pool, Record, trace_headers

BROKER: dict[str, str | int | float | bool] = {
    "bootstrap.servers": os.environ.get("KAFKA", "localhost:9092")
}
PAYMENTS = 1_000


async def main() -> None:
    """Publish payments, and write a receipt for each."""
    producer = Producer(BROKER)
    for number in range(PAYMENTS):
        producer.produce("payments", b"%d" % number, b"%d" % (number % 10))
    producer.flush()

    written = 0

    async def receipt(record: Record) -> Output:
        nonlocal written
        await asyncio.sleep(0.001)
        written += 1
        if written == PAYMENTS:
            pool.stop()
        return Output("receipts", b"paid %s" % (record.value or b""), record.key, trace_headers())

    source = KafkaTransactions(
        {**BROKER, "group.id": "receipts"}, ["payments"], transactional_id="receipts-1"
    )
    pool = Pool(source, receipt, workers=50, commit_every_s=0.5)
    await pool.run()
    print("receipts:", written)


if __name__ == "__main__":
    asyncio.run(main())
