"""Messages of a key are looked for by the node: nothing else of the topic comes to the browser."""

import json

from tests.browser.console import Console

MANY = 6_000
POSITIONS = "[...document.querySelectorAll('td button.mono')].map((each) => each.innerText)"
READS = "asked.map((each) => each.path).filter((each) => each.includes('/partitions/'))"


def fill(console: Console, topic: str, keys: list[str]) -> None:
    console.ask("POST", "/topics", {"topic": topic, "ifAbsent": True})
    for first in range(0, len(keys), 1_000):
        messages = [{"value": "v", "key": key} for key in keys[first : first + 1_000]]
        console.ask("POST", f"/topics/{topic}/messages", {"messages": messages})


def shows(console: Console, *offsets: int) -> None:
    wanted = json.dumps([f"0/{each}" for each in offsets], separators=(",", ":"))
    console.page.wait(f"JSON.stringify({POSITIONS}) === {json.dumps(wanted)}")


def test_a_key_is_found_however_far_back_and_only_its_messages_are_read(console):
    rare = {3, 4_000, MANY - 1}
    fill(console, "keyed", ["rare" if at in rare else "common" for at in range(MANY)])
    console.go("topics/keyed?key=rare", "3 of this key at 6,000 offsets")
    shows(console, MANY - 1, 4_000, 3)
    # From an offset on, the oldest first.
    console.go("topics/keyed?key=rare&offset=5", "2 of this key at 5,995 offsets")
    shows(console, 4_000, MANY - 1)
    reads = console.page.value(READS)
    assert reads
    assert [each for each in reads if "key=rare" not in each] == []

    # Of a key that most have, a page is as long as any, and the next one goes on where it ended.
    console.go("topics/keyed?key=common", "\u201cOlder\u201d for the rest")
    console.page.wait(f"{POSITIONS}.length === 200 && {POSITIONS}[199] === '0/{MANY - 201}'")
    console.do("press('\\u2039 Older')")
    console.page.wait(f"{POSITIONS}.length === 200 && {POSITIONS}[0] === '0/{MANY - 202}'")


def test_a_key_that_is_followed_is_not_lost_among_others(console):
    fill(console, "busy", ["common"])
    console.go("topics/busy?key=rare&follow=live", "waiting for messages")
    fill(console, "busy", ["rare", *["common"] * 900])
    shows(console, 1)


def test_a_key_that_is_no_text_is_found(console):
    body = {"messages": [{"value": "v", "keyBase64": "/w=="}, {"value": "v", "key": "a"}]}
    console.ask("POST", "/topics/bytes/messages", body)
    console.go("topics/bytes?key=base64%20/w%3D%3D", "1 of this key")
    shows(console, 0)
