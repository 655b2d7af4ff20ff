"""What is done to a list is a step: the browser's way back undoes it, and on does it again."""

import json

import pytest

from tests.browser.console import Console

FILTER = "const f = $('input[type=search]')"


def back(console: Console) -> None:
    console.page.value("void history.back()")


def at(console: Console, address: str) -> None:
    console.wait(f"decodeURIComponent(location.hash) === '#/{address}'")


def filter_by(console: Console, *typed: str) -> None:
    """Type a filter, waiting after each part until the list is that."""
    console.do(f"{FILTER}; f.dispatchEvent(new Event('focus'));")
    for text in typed:
        console.do(f"{FILTER}; f.value = '{text}'; f.dispatchEvent(new Event('input'));")
        console.wait(f"location.hash.endsWith('filter={text}')")


@pytest.mark.parametrize(("where", "sort"), [("topics", "Lag"), ("groups", "Lag")])
def test_a_filter_and_an_order_of_a_list_are_taken_back(console, where, sort):
    for name in ("steps-a", "steps-b"):
        console.ask("POST", f"/topics/{name}/messages", {"value": "x"})
        console.ask("GET", f"/topics/{name}/messages?group=g&limit=1&wait=5s")
    console.go("audit", "Audit")
    console.go(where, "steps-b")
    filter_by(console, "steps", "steps-a")  # one step, however many letters
    console.page.wait("!document.querySelector('tbody').innerText.includes('steps-b')")
    console.do(f"press('{sort}')")
    at(console, f"{where}?filter=steps-a&sort=lag&descending=true")
    back(console)
    at(console, f"{where}?filter=steps-a")
    console.wait("$('input[type=search]').value === 'steps-a' && !$('[aria-sort=descending]')")
    back(console)
    at(console, where)
    console.wait("$('input[type=search]').value === ''")
    console.shows("steps-b")
    back(console)
    at(console, "audit")
    console.page.value("void history.forward()")
    at(console, where)
    console.shows("steps-b")


def test_a_page_of_messages_and_what_is_shown_of_them_are_taken_back(console):
    messages = [{"value": f"number {number}."} for number in range(60)]
    console.ask("POST", "/topics", {"topic": "walked", "ifAbsent": True})
    console.ask("POST", "/topics/walked/messages", {"messages": messages})
    console.go("topics/walked", "number 59.")
    console.do("press('\u2039 Older')")
    console.shows("number 3.")
    at(console, "topics/walked?before=0:10")
    console.do("press('Follow live')")
    at(console, "topics/walked?before=0:10&follow=live")
    console.shows("waiting for messages")
    back(console)
    at(console, "topics/walked?before=0:10")
    console.shows("number 3.")
    back(console)
    at(console, "topics/walked")
    console.shows("number 59.")
    assert "number 3." not in console.page.value("document.querySelector('main').innerText")


def bars(console: Console, claim: str) -> None:
    """Wait until a claim holds of the bars of the timeline."""
    console.page.wait(f"[...document.querySelectorAll('.bars button')].some((e) => {claim})")


def test_what_is_chosen_of_the_schedule_is_taken_back(console):
    console.ask("POST", "/topics/chosen/messages", {"value": "mine", "delay": "3h", "key": "k"})
    console.ask("POST", "/topics/others/messages", {"value": "theirs", "delay": "3h"})
    console.go("audit", "Audit")
    console.go("schedule", "theirs")
    console.wait("[...$('[aria-label=Topic]').options].some((each) => each.value === 'chosen')")
    set_ = "const f = $('[aria-label=Topic]'); f.value = 'chosen'; f.dispatchEvent"
    console.do(f"{set_}(new Event('change'));")
    at(console, "schedule?topic=chosen")
    console.page.wait("!document.querySelector('tbody').innerText.includes('theirs')")
    console.do("press('By hour')")
    at(console, "schedule?topic=chosen&scale=day")
    console.page.wait("document.querySelectorAll('.bars button').length === 48")
    bars(console, "/: 1$/m.test(e.title)")
    console.do(
        "[...document.querySelectorAll('.bars button')].find((e) => /: 1$/m.test(e.title)).click()"
    )
    console.wait("location.hash.includes('from=')")
    bars(console, "e.ariaPressed === 'true'")
    with_bar = console.page.value("location.hash")
    console.do(
        f"{FILTER}; f.dispatchEvent(new Event('focus')); f.value = 'k';"
        "f.dispatchEvent(new Event('input'));"
    )
    console.wait("location.hash.includes('key=k')")
    console.do("$('td.tools [aria-label^=Show]').click()")
    console.wait("location.hash.includes('message=')")

    back(console)  # what was open is no step, and is open no more
    console.wait(f"location.hash === {json.dumps(with_bar)} && !$('dialog')")
    bars(console, "e.ariaPressed === 'true'")
    back(console)
    at(console, "schedule?topic=chosen&scale=day")
    bars(console, "/: 1$/m.test(e.title)")
    assert not console.do("return !!$('.bars [aria-pressed=true]')")
    back(console)
    at(console, "schedule?topic=chosen")
    console.page.wait("document.querySelectorAll('.bars button').length === 60")
    back(console)
    at(console, "schedule")
    console.shows("theirs")
    back(console)
    at(console, "audit")
