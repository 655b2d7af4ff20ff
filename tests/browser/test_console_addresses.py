"""What is looked at in the console stands in its address: whoever gets a link sees the same."""

import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from tests.browser.console import Console
from tests.kit.aside import aside
from tests.server.served import running_server
from waterclock.history.history import STEP_MS, Sample
from waterclock.history.series import NODE, TOPIC
from waterclock.runtime.clock import SystemClock

MIDDLE = """
(() => { const box = document.querySelector(".plot .u-over").getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2]; })()
"""
POSITIONS = "[...document.querySelectorAll('td button.mono')].map((each) => each.innerText)"


def asked(console: Console) -> str:
    return str(console.page.value("decodeURIComponent(location.hash)"))


def positions(console: Console, first: int, last: int) -> None:
    """Wait until the list goes from one message to another."""
    step = 1 if last >= first else -1
    wanted = json.dumps([f"0/{at}" for at in range(first, last + step, step)])
    console.page.wait(f"JSON.stringify({POSITIONS}) === {json.dumps(wanted.replace(' ', ''))}")


def shared(console: Console) -> None:
    """Open the address that is there, as somebody else would."""
    console.open(asked(console).removeprefix("#/"))


def test_messages_are_paged_and_a_page_or_a_message_of_them_can_be_shared(console):
    messages = [{"value": f"{number}", "key": "ab"[number % 2]} for number in range(120)]
    console.ask("POST", "/topics", {"topic": "pages", "ifAbsent": True})
    console.ask("POST", "/topics/pages/messages", {"messages": messages})
    console.go("topics/pages", "Partitions")
    positions(console, 119, 70)
    console.do("press('\\u2039 Older')")
    positions(console, 69, 20)
    assert "before=0:70" in asked(console)
    shared(console)
    positions(console, 69, 20)
    console.do("press('\\u2039 Older')")
    positions(console, 19, 0)
    console.wait("[...document.querySelectorAll('.pager button')][0].disabled")
    console.do("press('Newer \\u203a')")
    positions(console, 69, 20)
    set_ = (
        "const f = $('[aria-label=\"{}\"]'); f.value = '{}'; f.dispatchEvent(new Event('change'))"
    )
    console.do(set_.format("From offset", "30"))
    positions(console, 30, 79)
    console.do("$('[aria-label=\"Show message 0/31\"]').click()")
    assert asked(console) == "#/topics/pages?offset=30&message=0/31"
    shared(console)
    console.wait("$('dialog h2')?.innerText === 'pages 0/31'")
    console.do("press('Close')")
    console.wait("location.hash === '#/topics/pages?offset=30'")
    console.do(set_.format("From offset", ""))
    console.do(set_.format("Only of this key", "b"))
    console.shows("60 of this key")
    assert asked(console) == "#/topics/pages?key=b"
    console.go("topics/pages?message=0/9999", "There is no message 0/9999 any more.")


def test_an_address_that_is_not_well_formed_is_taken_as_it_stands(console):
    console.open("topics/100%?key=%")
    console.wait("$('main h1').innerText === '100%'")
    console.go("topics", "New topic")


def test_a_partition_that_is_followed_is_the_one_that_is_chosen(console):
    console.ask("POST", "/topics/parted/messages", {"value": "x"})
    console.ask("PATCH", "/topics/parted", {"partitions": 2})
    console.go("topics/parted?partition=1&follow=live", "waiting for messages")
    assert console.do("return $('[aria-label=Partition]').value") == "1"
    for partition, value in ((0, "elsewhere"), (1, "told at once")):
        body = {"value": value, "partition": partition}
        console.ask("POST", "/topics/parted/messages", body)
    console.shows("told at once")
    assert "elsewhere" not in console.page.value("document.querySelector('main').innerText")


def test_what_of_the_schedule_a_dead_letter_and_a_stream_is_shown_can_be_shared(console):
    console.ask("POST", "/topics/soon/messages", {"value": "in ten minutes", "delay": "10m"})
    console.ask("POST", "/topics/soon/messages", {"value": "in forty minutes", "delay": "40m"})
    console.go("schedule?topic=soon", "in forty minutes")
    bar = "[...document.querySelectorAll('.bars button')].find((e) => / 1$/m.test(e.title))"
    console.wait(f"!!{bar}")  # the bars may come after the list
    console.do(f"{bar}.click()")
    console.page.wait("!document.body.innerText.includes('in forty minutes')")
    assert "from=" in asked(console)
    shared(console)
    console.shows("in ten minutes")
    assert "in forty minutes" not in console.page.value("document.querySelector('main').innerText")

    console.ask("POST", "/topics/soon/messages", {"value": "failed"})
    taken = console.ask("GET", "/topics/soon/messages?group=g&limit=1&wait=5s")["messages"]
    refused = {"group": "g", "reject": [taken[0]["lease"]], "leave": True}
    console.ask("POST", "/topics/soon/acks", refused)
    console.go("dead-letters/soon", "rejected")
    console.do("press('Show')")
    assert "letter=" in asked(console)
    shared(console)
    console.wait("!!$('dialog .message')")
    # And from there to where it was published.
    console.do("$('dialog dd a').click()")
    console.wait("$('dialog .facts')?.innerText.includes('Stored')")
    console.do("press('Close')")

    console.ask("POST", "/streams/send", {"streamId": "told", "message": "a"})
    console.go("streams/told", "Waiting senders")
    console.do("press('Hold')")
    assert asked(console).endswith("?follow=no")


def test_a_scheduled_message_that_is_open_can_be_shared_until_it_is_not_to_come_any_more(console):
    due_ms = SystemClock().now_ms() + 7_200_000
    messages = [{"value": value, "dueMs": due_ms} for value in ("the first", "the second")]
    console.ask("POST", "/topics/opened/messages", {"messages": messages})
    console.go("schedule?topic=opened", "the second")
    found = console.ask("GET", "/topics/opened/scheduled?values=true")["scheduled"]
    [second] = [each for each in found if each["value"] == "the second"]
    place = {name: second[name] for name in ("partition", "offset")}
    name = f"opened/{second['partition']}/{second['offset']}"
    title = name.replace("/", " ", 1)
    console.do(f"$('[aria-label=\"Show {title}\"]').click()")
    assert f"message={name}&due=" in asked(console)
    there = asked(console).removeprefix("#/")
    shared(console)
    console.wait(f"$('dialog h2')?.innerText === '{title}'")
    assert "the second" in console.do("return $('dialog .message').innerText")
    console.do("press('Close', $('dialog'))")
    console.wait("location.hash === '#/schedule?topic=opened'")
    fire = {"messages": [place], "delay": "0s"}
    console.ask("POST", "/topics/opened/reschedule", fire)
    console.go(there, f"{name} is not to come any more at")
    assert not console.do("return !!$('dialog')")
    console.go("schedule?message=opened", "opened is not to come any more:")


def test_a_recurrence_that_is_open_can_be_shared(console):
    rule = {"topic": "bells", "cron": "0 9 * * *", "zone": "Europe/Berlin", "value": "ring"}
    console.ask("PUT", "/recurrences/each-day", rule)
    console.go("schedule", "each-day")
    console.do("press('each-day')")
    assert asked(console) == "#/schedule?recurrence=each-day"
    shared(console)
    console.wait("$('dialog')?.querySelectorAll('ol li').length === 10")
    console.do("press('Close', $('dialog'))")
    console.wait("location.hash === '#/schedule'")
    console.ask("DELETE", "/recurrences/each-day")
    console.go("schedule?recurrence=each-day", "There is no recurrence each-day any more.")


def fails(console: Console, topic: str, count: int) -> None:
    """Have messages that a worker has refused."""
    console.ask("POST", f"/topics/{topic}/messages", {"messages": [{"value": "x"}] * count})
    while count:
        path = f"/topics/{topic}/messages?group=g&limit=100&wait=5s&start=earliest"
        leases = [each["lease"] for each in console.ask("GET", path)["messages"]]
        done = {"group": "g", "reject": leases, "leave": True}
        console.ask("POST", f"/topics/{topic}/acks", done)
        count -= len(leases)


def test_a_dead_letter_beyond_those_that_are_listed_is_opened_or_said_to_be_gone(console):
    fails(console, "many", 102)
    listed = console.ask("GET", "/topics/many/dead-letters?limit=102")["deadLetters"]
    last = listed[-1]["position"]
    name = f"{last['partition']}/{last['offset']}"
    console.open(f"dead-letters/many?letter={name}")
    console.wait(f"$('dialog h2')?.innerText === 'many {name}'")
    assert console.do("return document.querySelectorAll('main tbody tr').length") == 100
    console.ask("POST", "/topics/many/dead-letters/purge", {"positions": [last]})
    console.open(f"dead-letters/many?letter={name}")
    console.shows(f"There is no dead letter {name} any more.")
    console.go("dead-letters/many?letter=nonsense", "There is no dead letter nonsense any more.")
    assert not console.do("return !!$('dialog')")


def test_a_run_that_is_not_known_any_more_is_said_to_be_gone(console):
    console.go("jobs?run=long-ago", "There is no run long-ago any more.")


def test_what_fired_and_was_late_stands_before_what_is_to_come(page, tmp_path):
    """Over an hour of a node's memory; late by more than a second it has another colour."""
    with aside(lambda: running_server(tmp_path)) as it:
        console = Console(page, it.server.http_port)
        console.ask("POST", "/topics/rings/messages", {"value": "x", "delay": "30m"})
        now_ms = SystemClock().now_ms()
        for slot in range(150):
            late = 2_000.0 if 60 <= slot < 72 else 10.0
            known = {"fired": 2.0, "latenessMaxMs": late}
            rows = [[known.get(series.name, 0.0) for series in each] for each in (NODE, TOPIC)]
            at_ms = now_ms - (150 - slot) * STEP_MS
            it.node.recorder.history.take(Sample(rows[0], {"rings": rows[1]}), at_ms)
        for where in ("schedule", "schedule?topic=rings"):
            console.open(where)
            console.page.wait("document.querySelectorAll('.bars .was').length === 15")
            console.shows("all within 2 s of their time")
            assert 1 <= console.page.value("document.querySelectorAll('.was.late').length") <= 2
            titles = "[...document.querySelectorAll('.was')].map((each) => each.title)"
            assert sum(": 120 fired" in each for each in console.page.value(titles)) >= 10
        assert page.value("window.wrong") == []
        page.open("about:blank")


def test_a_message_that_fired_tells_how_late_it_was(console):
    console.ask("POST", "/topics/fired/messages", {"value": "rings", "delay": "1s"})
    console.ask("GET", "/topics/fired/messages?group=g&limit=1&wait=20s&start=earliest")
    console.go("topics/fired", "rings")
    console.wait("/\\+\\d+ m?s/.test($('main').innerText)")
    console.do("$('td button.mono').click()")
    console.wait("/Due[^]*Stored[^]*\\+\\d+ m?s/.test($('dialog .facts').innerText)")


def test_times_are_of_the_readers_zone_with_utc_on_hover(console):
    due_s = SystemClock().now_ms() // 1_000 + 40 * 86_400
    here = datetime.fromtimestamp(due_s, ZoneInfo("Asia/Kolkata"))
    console.page.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
    console.ask("POST", "/topics/zones/messages", {"value": "x", "dueMs": due_s * 1_000})
    console.go("schedule?topic=zones", f"{here:%Y-%m-%d %H:%M:%S}")
    title = console.page.value("document.querySelector('td time').title")
    utc = f"{here.astimezone(UTC):%Y-%m-%d %H:%M:%S}.000 UTC"
    assert title.startswith(utc)
    # And so does a bar of the timeline, and the place in a plot that the mouse is at.
    console.wait(
        "/^\\d\\d:\\d\\d:00: \\d+\\n[-\\d]+ \\d\\d:\\d\\d:00.000 UTC$/.test($('.bars .now')?.title)"
    )
    shown, said = console.page.value("document.querySelector('.bars .now').title").split("\n")
    local = datetime.fromisoformat(said.removesuffix(" UTC")).replace(tzinfo=UTC)
    assert shown.startswith(f"{local.astimezone(here.tzinfo):%H:%M:%S}")
    console.go("", "Messages a second")
    console.wait("!!$('.plot .u-over')")
    x, y = console.page.value(MIDDLE)
    console.page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    console.wait("/\\n[-\\d]+ [:\\d]+.000 UTC$/.test($('.plot').title)")
