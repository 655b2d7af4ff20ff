"""A dispatcher and two workers in one program, on readings that wait in a stream.

Needs `pip install 'waterclock[redis]' redis`, and a Redis, at 127.0.0.1:6379 or where REDIS says.
"""

import asyncio
import json
import os
from typing import Any

from redis.asyncio import Redis

from waterclock.dispatch import (
    DispatcherConfig,
    PermanentError,
    WorkerConfig,
    run_dispatcher,
    run_worker,
)

READINGS = 1_000
WHERE = os.environ.get("REDIS", "127.0.0.1:6379")
DISPATCH = DispatcherConfig(
    redis=(WHERE,), prefix="example", source="readings", output="fahrenheit", port=0,
    host="127.0.0.1",
)  # fmt: skip
WORKER = WorkerConfig(redis=(WHERE,), prefix="example", output="fahrenheit")


def handle(message: dict[str, Any]) -> dict[str, object]:
    """Return what to write of a reading."""
    if "celsius" not in message:
        raise PermanentError("no reading in it")
    return {"device": message["device"], "fahrenheit": message["celsius"] * 9 / 5 + 32}


async def main() -> None:
    """Publish readings, one of them spoiled, and see them come out once each."""
    async with Redis.from_url(f"redis://{WHERE}") as redis:
        await redis.delete("readings", "fahrenheit", "{readings}:dead")
        async with redis.pipeline(transaction=False) as batch:
            for number in range(READINGS):
                reading = {"device": f"sensor-{number}", "celsius": number / 10}
                if number == 777:
                    reading = {"device": "sensor-777"}
                batch.xadd("readings", {"data": json.dumps(reading)})
            await batch.execute()

        async with asyncio.TaskGroup() as tasks:
            programs = [
                tasks.create_task(run_dispatcher(DISPATCH)),
                tasks.create_task(run_worker(WORKER, handler=handle)),
                tasks.create_task(run_worker(WORKER, handler=handle)),
            ]
            done = 0
            while done < READINGS:
                done = await redis.xlen("fahrenheit") + await redis.xlen("{readings}:dead")
                await asyncio.sleep(0.05)
            for program in programs:
                program.cancel()

        written: Any = await redis.xrange("fahrenheit")
        dead: Any = await redis.xrange("{readings}:dead")
        devices = {fields[b"device"] for _, fields in written}
        print("written:", len(written), "each once:", len(devices) == len(written))
        print("dead:", *(fields[b"reason"].decode() for _, fields in dead))


if __name__ == "__main__":
    asyncio.run(main())
