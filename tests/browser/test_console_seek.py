"""A group is moved only by who has seen what that does: what comes again, and what is skipped."""

from collections.abc import Iterator

import pytest

from tests.browser.console import Console

SUBMIT = "$('dialog button[type=submit]')"
QUESTION = "$('dialog .notice.warn:not(.hidden)')?.innerText"


@pytest.fixture
def group(console: Console) -> Iterator[str]:
    """A group that has had three messages of five, and the path of where it stands."""
    topic = "moving"
    console.ask("POST", "/topics", {"topic": topic, "partitions": 1, "ifAbsent": True})
    messages = f"/topics/{topic}/messages"
    console.ask("POST", messages, {"messages": [{"value": str(n)} for n in range(5)]})
    taken = console.ask("GET", f"{messages}?group=g&limit=3&wait=5s&start=earliest")["messages"]
    leases = [each["lease"] for each in taken]
    console.ask("POST", f"/topics/{topic}/acks", {"group": "g", "ack": leases, "leave": True})
    path = f"/topics/{topic}/groups/g"
    yield path
    console.ask("DELETE", path)
    console.ask("DELETE", f"/topics/{topic}")


def committed(console: Console, path: str) -> int:
    [partition] = console.ask("GET", path)["partitions"]
    return int(partition["committed"])


def asks(console: Console, text: str) -> None:
    console.wait(f"{QUESTION} === 'g: {text}. Move the group?'")


@pytest.mark.parametrize(
    ("to", "offset", "does", "goes_to"),
    [
        ("earliest", "0", "up to 3 messages will be delivered again", 0),
        ("latest", "0", "up to 2 messages will be skipped", 5),
        ("offset", "4", "up to 1 message will be skipped", 4),
        ("offset", "3", "no message will be delivered again, and none skipped", 3),
    ],
)
def test_what_a_seek_does_is_told_before_it_is_done(console, group, to, offset, does, goes_to):
    console.go("groups/moving/g", "Generation")
    console.do("press('Seek\u2026')")
    console.do(f"fill('to', '{to}'); fill('offset', '{offset}'); {SUBMIT}.click()")
    asks(console, does)
    assert committed(console, group) == 3
    console.do("press('Yes: seek')")
    console.wait("!$('dialog')")
    assert committed(console, group) == goes_to


def test_who_goes_back_or_changes_their_mind_has_moved_nothing(console, group):
    console.go("groups/moving/g", "Generation")
    console.do(f"press('Seek\u2026'); {SUBMIT}.click()")
    asks(console, "up to 3 messages will be delivered again")
    console.do("fill('to', 'latest')")  # another question
    console.wait(f"!{QUESTION} && {SUBMIT}.innerText === 'Seek'")
    console.do(f"{SUBMIT}.click()")
    asks(console, "up to 2 messages will be skipped")
    console.do("press('Back')")
    console.wait("!$('dialog')")
    assert committed(console, group) == 3


def test_an_offset_is_of_one_partition_and_one_that_it_has_not_is_refused(console):
    console.ask("POST", "/topics", {"topic": "uneven", "partitions": 2, "ifAbsent": True})
    messages = "/topics/uneven/messages"
    for number in range(3):
        console.ask("POST", messages, {"value": f"{number}", "partition": 1})
    taken = console.ask("GET", f"{messages}?group=g&limit=3&wait=9s&start=earliest")["messages"]
    leases = [each["lease"] for each in taken]
    console.ask("POST", "/topics/uneven/acks", {"group": "g", "ack": leases, "leave": True})
    console.go("groups/uneven/g", "Generation")
    console.do("press('Seek\u2026'); fill('to', 'offset'); fill('offset', '1')")
    refused = "Offset: partition 0 has those from 0 to 0"
    console.wait(f"$('dialog form').innerText.includes('{refused}')")  # before it is asked for
    console.do(f"{SUBMIT}.click()")
    console.wait(f"$('dialog .notice.bad').innerText === '{refused}'")
    console.do(f"fill('partition', '1'); {SUBMIT}.click()")
    asks(console, "up to 2 messages will be delivered again")
    assert "--offset 1/1 --address" in console.do("return $('dialog .same').innerText")
    console.do("press('Yes: seek')")
    console.wait("!$('dialog')")
    after = console.ask("GET", "/topics/uneven/groups/g")["partitions"]
    assert [each["committed"] for each in after] == [0, 1]


def test_a_group_is_not_moved_before_it_is_known_where_it_stands(console):
    console.do("""
      const ask = window.fetch;
      window.fetch = (path, options) => String(path).includes("/groups/")
        ? new Promise(() => {}) : ask(path, options);
    """)
    console.go("groups/orders/unknown", "Seek\u2026")
    found = "[...document.querySelectorAll('button')].find((e) => e.innerText === 'Seek\u2026')"
    assert console.do(f"return {found}.disabled")
