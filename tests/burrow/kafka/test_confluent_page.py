"""docs/burrow_from_confluent.md keeps its word: its program runs, and its names are ours."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "burrow_from_confluent.md"


def program():
    (found,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return found


def test_the_program_bills_three_orders(broker, topic):
    broker.create(topic)
    broker.publish(topic, 3)
    address = str(broker.settings["bootstrap.servers"])
    text = program().replace("localhost:9092", address)
    names: dict[str, object] = {}

    # Others use these names on the same broker.
    exec(text.replace('"orders"', f'"{topic}"').replace('"billing"', f'"{topic}"'), names)

    billed = names["billed"]
    assert isinstance(billed, list)
    assert sorted(billed) == [b"0", b"1", b"2"]
    assert sum(max(0, offset) for offset in broker.committed(topic, topic).values()) == 3
