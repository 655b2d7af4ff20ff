"""Messages for later: plan, move, cancel, list, repeat. Needs a node: `waterclock up`."""

import asyncio
from datetime import timedelta

import waterclock
from waterclock import Cron

TOPIC = "calendar"


async def main() -> None:
    """Plan a day and change one's mind about it."""
    async with waterclock.connect() as client:
        standup = await client.publish(TOPIC, b"stand-up", at="tomorrow 9:00 Europe/Berlin")
        dentist = await client.publish(TOPIC, b"dentist", at=timedelta(days=30), key=b"me")
        tea = await client.publish(TOPIC, b"tea", at="+1s", expires="+1h")

        print("moved:", await client.reschedule(TOPIC, standup, at="+2d"))
        print("cancelled:", await client.cancel(TOPIC, dentist.message_id, key=b"me"))
        async for planned in client.scheduled(TOPIC, with_values=True):
            print("planned:", planned.value)

        backup = await client.publish("jobs", b"backup", at=Cron("0 3 * * *", "Europe/Berlin"))
        print("repeats:", backup.cron, backup.zone)
        await client.stop_repeating(backup)

        async with client.subscribe(TOPIC, group="me") as messages:
            message = await anext(messages)
            assert message.due is not None
            print("due now:", message.value, "early:", message.appended < message.due)
            message.ack()
        print("too late:", await client.cancel(TOPIC, tea))
        await client.cancel(TOPIC, standup)  # or the next run lists it too


if __name__ == "__main__":
    asyncio.run(main())
