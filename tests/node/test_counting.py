"""What a node counts of its topics: sums that stay what they were, wherever the lead goes."""

from types import SimpleNamespace
from typing import Any

from waterclock.node.counters import PartitionCounters
from waterclock.node.history.counting import count_all


def partition(**given: Any) -> Any:
    """Return what is counted of a partition that this node leads."""
    store = SimpleNamespace(
        faults=[], start=1, acknowledged_end=4, segments=[SimpleNamespace(end_position=100)]
    )
    zero = {"is_open": True, "is_here": True, "problem": None, "scheduler": [1, 2], "store": store}
    return SimpleNamespace(**{**zero, "counters": PartitionCounters(), **given})


async def test_what_was_fired_and_published_stays_so_while_another_node_leads():
    host = partition()
    host.counters.published, host.counters.fired = 7, 3
    host.counters.lateness_ms.observe(0)
    topic: Any = SimpleNamespace(name="t", partitions=[host])
    led = (await count_all([topic], [], 0)).topics["t"]
    assert (led.led, led.messages, led.size_bytes, led.pending) == (1, 3, 100, 2)

    host.is_here = False
    followed = (await count_all([topic], [], 5_000)).topics["t"]

    assert (followed.led, followed.messages, followed.pending) == (0, 0, 0)
    assert (followed.size_bytes, followed.copied_bytes) == (0, 100)
    done = (led.published, led.fired, led.lateness)
    assert (followed.published, followed.fired, followed.lateness) == done == (7, 3, led.lateness)
