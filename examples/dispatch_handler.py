"""For `waterclock worker --handler dispatch_handler:handle`; and a handler that is told more."""

from typing import Any

from waterclock.dispatch import Delivery, PermanentError


def handle(message: dict[str, Any]) -> dict[str, object] | None:
    """Return what to write of a reading; nothing of a device that only says it is there."""
    if message.get("kind") == "ping":
        return None
    if "celsius" not in message:
        raise PermanentError("no reading in it")  # to the dead stream: no retry mends it
    return {"device": message["device"], "fahrenheit": message["celsius"] * 9 / 5 + 32}


async def handle_slowly(message: dict[str, Any], delivery: Delivery) -> dict[str, object]:
    """Take a second argument to know the message's id and how often it was handed out."""
    return {"id": delivery.uuid, "attempt": delivery.deliveries, "device": message["device"]}
