"""What the devices send, and the handler that a worker calls with it.

One message in `SPOILED_EVERY` is cut off in the middle, as happens in the field: it can never be
processed, and belongs in the dead stream.
"""

import json
from random import Random
from typing import Any

DEVICES = 1_000
SPOILED_EVERY = 2_500
KINDS = {"temperature": (20.0, 4.0), "humidity": (45.0, 10.0), "pressure": (1_013.0, 8.0)}
"""The mean and the spread of what each kind of sensor measures."""


def reading(number: int, rng: Random, now_ms: int) -> bytes:
    """Return one message. The number is the publisher's own; dispatchers do not look at it."""
    kind, (mean, spread) = rng.choice([*KINDS.items()])
    fields = {
        "message_id": number,
        "device": f"sensor-{rng.randrange(DEVICES):04}",
        "kind": kind,
        "value": round(rng.gauss(mean, spread), 2),
        "at_ms": now_ms,
    }
    body = json.dumps(fields).encode()
    return body[: len(body) // 2] if is_spoiled(number) else body


def is_spoiled(number: int) -> bool:
    """Tell whether the message of this number is cut off."""
    return number % SPOILED_EVERY == SPOILED_EVERY // 2


def handle(message: dict[str, Any]) -> dict[str, object]:
    """Return what is to be written of a reading."""
    mean, spread = KINDS[message["kind"]]
    return {
        "message_id": message["message_id"],
        "device": message["device"],
        message["kind"]: message["value"],
        "is_odd": abs(message["value"] - mean) > 3 * spread,
    }
