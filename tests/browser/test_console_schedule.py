"""The schedule of all topics is of all of them, however many there are; what is cut says so."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.browser.console import Console
from tests.kit.aside import aside
from tests.server.served import running_server

TOPICS = 24
EACH = 4
ROWS = "document.querySelectorAll('[aria-label=\"scheduled messages\"] tbody tr').length"
COUNTED = """
[...document.querySelectorAll('.bars button')]
  .reduce((sum, each) => sum + Number.parseInt(each.title.split(': ')[1]), 0)
"""


def scheduled(console: Console, number: int) -> Any:
    """Have messages of a topic in twenty minutes, of one topic after the other."""
    delay = f"{20 * 60 + number}s"
    messages = [{"value": f"{number}/{each}", "key": f"k{each}"} for each in range(EACH)]
    body = {"messages": [each | {"delay": delay} for each in messages]}
    return console.ask("POST", f"/topics/t{number:02}/messages", body)


def test_the_schedule_of_all_topics_leaves_out_none_and_says_where_it_is_cut(page, tmp_path):
    with aside(lambda: running_server(tmp_path)) as it:
        console = Console(page, it.server.http_port)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: scheduled(console, number), range(TOPICS)))
        console.open("schedule")
        console.shows("96 to come, 96 of it shown here.")
        page.wait(f"{COUNTED} === 96")
        console.shows(
            "These are the next 50 by due time: \u201cMore\u201d shows those that follow."
        )
        assert page.value(ROWS) == 50
        assert page.value("document.querySelector('[aria-label=Topic]').options.length") == 25
        console.do("press('More')")
        page.wait(f"{ROWS} === 96")
        console.shows("23/3")
        page.wait("!document.body.innerText.includes('These are the next')")

        console.go("schedule?key=k2", "23/2")
        page.wait(f"{ROWS} === {TOPICS}")
        assert page.value("window.wrong") == []
        page.open("about:blank")


def test_a_schedule_that_cannot_be_read_is_not_shown_as_empty(console):
    refuse = """
      const ask = window.fetch;
      window.fetch = async (path, options) => String(path).includes("/scheduled")
        ? new Response('{"detail": "it is too much"}', { status: 503 }) : ask(path, options);
    """
    console.do(refuse)
    console.go("schedule", "What is to come is not known: it is too much")
    console.shows("The list is not what is there now: it is too much")


def test_a_row_keeps_the_focus_while_others_come_and_go(console):
    for name in ("first", "second", "third"):
        console.ask("POST", "/topics/focus/messages", {"value": name, "delay": "1h"})
    console.go("schedule?topic=focus", "third")
    row = "[...document.querySelectorAll('tr')].find((each) => each.innerText.includes('second'))"
    console.do(f"window.held = {row}.querySelector('button'); held.focus()")
    found = console.ask("GET", "/topics/focus/scheduled?values=true")["scheduled"]
    [first] = [each for each in found if each["value"] == "first"]
    place = {"partition": first["partition"], "offset": first["offset"]}
    console.ask("POST", "/topics/focus/reschedule", {"messages": [place], "delay": "0s"})
    console.page.wait("!document.querySelector('main').innerText.includes('first')")
    assert console.page.value("document.activeElement === held")
    console.ask("POST", "/topics/focus/messages", {"value": "before them", "delay": "30m"})
    console.shows("before them")
    assert console.page.value("document.activeElement === held")


def test_a_recurrence_that_somebody_changes_is_shown_as_it_is_now(console):
    daily = {"topic": "bells", "cron": "0 9 * * *", "value": "ring"}
    console.ask("PUT", "/recurrences/daily", daily)
    console.go("schedule?topic=bells", "0 9 * * *")
    console.ask("PUT", "/recurrences/daily", daily | {"cron": "0 10 * * *"})
    console.shows("0 10 * * *")
    console.do("press('daily')")
    assert "0 10 * * *" in console.do("return $('dialog').innerText")
    console.ask("DELETE", "/recurrences/daily")


def test_what_is_to_come_is_told_by_the_clock_of_the_node(console):
    console.ask("POST", "/topics/skewed/messages", {"value": "x", "delay": "20m"})
    console.do("const now = Date.now; Date.now = () => now.call(Date) + 7200000")
    console.go("schedule?topic=skewed", "1 to come, 1 of it shown here.")
    console.wait("/in (20 m|19 m)/.test($('main').innerText)")
