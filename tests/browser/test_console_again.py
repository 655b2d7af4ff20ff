"""A message that is published again, or redriven, goes as it came but for what was changed: a form
shows no line break of a key, and no other than its own of a value."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.browser.console import Console

PROGRAM = str(Path(sys.executable).parent / "waterclock")
SENT = ("key", "keyBase64", "value", "headers")


def there(console: Console, topic: str) -> list[dict[str, Any]]:
    """Give what was sent of the messages of a topic, from its first on."""
    [place] = console.ask("GET", f"/topics/{topic}")["partitions"]
    each = f"/topics/{topic}/partitions/0/messages?count=1&offset="
    found = [console.ask("GET", f"{each}{n}", is_lines=True) for n in range(place["endOffset"])]
    return [{name: one[name] for name in SENT if name in one} for one in found]


def publish_again(console: Console, topic: str, **fields: Any) -> str:
    """Publish the first message of a topic again; return the command lines of the form."""
    console.go("topics", "New topic")
    console.go(f"topics/{topic}", "0/0")
    console.do("$('[aria-label=\"Show message 0/0\"]').click()")
    console.do("press('Publish again\u2026')")
    return console.submit(**fields)


@pytest.mark.parametrize(
    "message",
    [
        {"value": "one\r\ntwo\r\n", "key": "a\nkey", "headers": {"two": "1\r\n2", "plain": "p"}},
        {"value": "one\ntwo", "keyBase64": "/w==", "headers": {"a=b": "c", "plain": "p=q"}},
    ],
    ids=["with line breaks", "with what no line holds"],
)
def test_a_message_that_is_published_again_goes_as_it_came(console, message):
    topic = "again-key" if "key" in message else "again-bytes"
    console.ask("POST", "/topics", {"topic": topic, "partitions": 1, "ifAbsent": True})
    console.ask("POST", f"/topics/{topic}/messages", message)
    said = publish_again(console, topic)
    assert ("waterclock publish" in said) == ("key" in message)  # which has no word for bytes
    assert there(console, topic) == [message, message]
    publish_again(console, topic, key="other", headers="plain=q", value="1\n2\n3")
    last = there(console, topic)[-1]
    ends = "\r\n" if "key" in message else "\n"
    assert last == {
        "key": "other",
        "value": f"1{ends}2{ends}3",
        "headers": message["headers"] | {"plain": "q"},
    }


def test_a_dead_letter_keeps_how_its_lines_end(console):
    console.ask("POST", "/topics", {"topic": "ends", "partitions": 1, "ifAbsent": True})
    console.ask("POST", "/topics/ends/messages", {"value": "a\r\nbad"})
    taken = console.ask("GET", "/topics/ends/messages?group=g&limit=1&wait=9s&start=earliest")
    refused = {"group": "g", "reject": [taken["messages"][0]["lease"]], "leave": True}
    console.ask("POST", "/topics/ends/acks", refused)
    console.go("dead-letters/ends", "bad")
    console.do("press('Show')")
    console.do("press('Edit and redrive\u2026')")
    console.submit(value="a\ngood")
    assert [each["value"] for each in there(console, "ends")] == ["a\r\nbad", "a\r\ngood"]


def test_the_command_that_publishes_a_hyphen_publishes_it(console):
    console.ask("POST", "/topics", {"topic": "hyphen", "partitions": 1, "ifAbsent": True})
    console.go("topics/hyphen", "Partitions")
    console.do("press('Publish\u2026')")
    said = console.submit(value="-", key="k")
    [line] = [each for each in said.splitlines() if "waterclock publish" in each]
    piped = "echo - | waterclock "
    assert line.startswith(piped)
    words = [PROGRAM, *shlex.split(line.removeprefix(piped))]
    subprocess.run(words, input=b"-\n", check=True, capture_output=True, timeout=60)
    assert there(console, "hyphen") == [{"key": "k", "value": "-"}] * 2
