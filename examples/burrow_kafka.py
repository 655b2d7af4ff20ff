"""Fifty calls at once on a Kafka topic, each key in its order, bad messages to dead letters.

Needs `pip install 'waterclock[kafka]'` and a broker, at localhost:9092 or where KAFKA says.
"""

import asyncio
import os

from confluent_kafka import Producer

from waterclock.burrow import KafkaDeadLetters, KafkaSource, PermanentError, Record, consumer

BROKER: dict[str, str | int | float | bool] = {
    "bootstrap.servers": os.environ.get("KAFKA", "localhost:9092")
}
ORDERS = 1_000
billed: dict[bytes | None, list[int]] = {}


@consumer(
    KafkaSource({**BROKER, "group.id": "invoicing"}, ["invoices"]),
    workers=50,
    on_failure="dlq",
    dead_letters=KafkaDeadLetters(BROKER),
)
async def bill(record: Record) -> None:
    """Bill an order, which takes a while."""
    if record.value == b"777":
        raise PermanentError("nobody can pay this")
    await asyncio.sleep(0.001)
    billed.setdefault(record.key, []).append(int(record.value or b""))


async def main() -> None:
    """Publish orders of ten customers, and bill them all."""
    producer = Producer(BROKER)
    for number in range(ORDERS):
        producer.produce("invoices", b"%d" % number, b"%d" % (number % 10))
    producer.flush()

    async with bill.pool() as pool:
        while sum(map(len, billed.values())) < ORDERS - 1:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    numbers = sorted(number for orders in billed.values() for number in orders)
    print("billed:", len(numbers), "each once:", len(set(numbers)) == len(numbers))
    print("each customer in order:", all(orders == sorted(orders) for orders in billed.values()))
    dead = sum(tally.dead_lettered for tally in pool.metrics.tallies.values())
    print("dead letters:", dead)


if __name__ == "__main__":
    asyncio.run(main())
