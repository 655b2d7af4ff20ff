"""A tab that nobody sees rests: it asks for nothing, and for all of it once it is seen again."""

import pytest

from tests.browser.console import Console

NO_TICKS = """void (() => {
  window.ticks = new Map();
  let last = 0;
  window.setInterval = (run) => { ticks.set(++last, run); return last; };
  window.clearInterval = (one) => { ticks.delete(one); };
})()"""
"""Intervals are counted, and none ever comes round: what is asked is asked at once."""

PAGES = {
    "topics/orders": "/topics/orders",
    "schedule": "/recurrences",
    "groups/orders/g": "/topics/orders/groups/g",
    "dead-letters/orders": "/topics/orders/dead-letters?limit=100",
    "streams": "/streams?limit=50&start=0",
    "streams/talk": "/streams/talk",
    "cluster": "/cluster/members",
    "jobs": "/replays",
    "": "/history?range=hour",
}
"""What each asks for again and again."""


def watched(console: Console) -> None:
    console.ask("POST", "/topics/orders/messages", {"value": "x"})
    taken = console.ask("GET", "/topics/orders/messages?group=g&limit=1&wait=5s")["messages"]
    done = {"group": "g", "ack": [each["lease"] for each in taken], "leave": True}
    console.ask("POST", "/topics/orders/acks", done)
    console.ask("POST", "/streams/send", {"streamId": "talk", "message": "x"})
    console.page.value(NO_TICKS)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_that_nobody_sees_asks_for_nothing_and_again_at_once_when_it_is_seen(console, path):
    watched(console)
    console.go("audit", "Audit")
    console.go(path, "")
    asked = f"asked.filter((call) => call.path === '{PAGES[path]}' && call.isTaken).length"
    console.wait(f"{asked} > 0 && ticks.size > 0")
    console.turn_away(True)
    assert console.page.value("ticks.size") == 0
    before = console.page.value(asked)
    console.turn_away(False)
    assert console.page.value("ticks.size") > 0
    console.wait(f"{asked} > {before}")


def test_a_page_that_was_left_stays_at_rest(console):
    watched(console)
    console.go("jobs", "Replays")
    console.wait("ticks.size === 1")
    console.go("audit", "Audit")
    console.wait("ticks.size === 0")
    console.turn_away(True)
    console.turn_away(False)
    assert console.page.value("ticks.size") == 0


def test_messages_that_come_while_nobody_sees_the_page_are_there_when_it_is_seen_again(console):
    console.ask("POST", "/topics", {"topic": "told", "ifAbsent": True})
    console.go("topics/told?follow=live", "waiting for messages")
    console.ask("POST", "/topics/told/messages", {"value": "the first"})
    console.shows("the first")
    console.turn_away(True)
    console.ask("POST", "/topics/told/messages", {"value": "meanwhile"})
    console.turn_away(False)
    console.shows("meanwhile")
    console.shows("the first")
