"""The console in a real browser: each page, and whom it believes.

One node and one browser serve all tests. Its names and messages are hostile: whatever they say must
be shown, and nothing of it run. A page that fails, or breaks the policy it came with, says so in
`wrong`, which every test looks at last.
"""

import json
from typing import Any

from tests.browser.console import EVIL, PLACES, SERIOUS, Console, answer, narrow
from tests.kit.aside import aside
from tests.server.served import running_server
from waterclock.model.ids import Millis
from waterclock.node.problems import DISK_FULL, problem_named


def hostile(console: Console) -> None:
    """Have something of everything, with markup wherever a client may write."""
    message = {"value": EVIL, "key": EVIL, "headers": {"note": EVIL}}
    console.ask("POST", "/topics/orders/messages", message)
    console.ask("POST", "/topics/orders/messages", {**message, "delay": "1h"})
    console.ask("POST", "/topics/orders/messages", {"value": '{"big": 12345678901234567890}'})
    console.ask("PUT", "/recurrences/r", {"topic": "orders", "cron": "0 9 * * *", "value": EVIL})
    console.ask("POST", "/streams/send", {"streamId": EVIL, "message": EVIL})
    taken = console.ask("GET", "/topics/orders/messages?group=g&limit=1&wait=5s")["messages"]
    leases = [each["lease"] for each in taken]
    console.ask("POST", "/topics/orders/acks", {"group": "g", "reject": leases, "leave": True})
    # A consumer chooses no reason: whoever publishes where dead letters lie writes what they like.
    forged = {"value": "by hand", "headers": {"wc-dlq-reason": EVIL, "wc-dlq-group": EVIL}}
    console.ask("POST", "/topics/orders.dlq/messages", forged)
    run = {"job": "report", "state": "failed", "error": EVIL, "report": json.dumps(EVIL)}
    console.ask("PUT", "/job-runs/r", {**run, "stage": EVIL})


def test_every_page_shows_hostile_names_and_bodies_as_text_and_axe_finds_nothing(console, axe):
    hostile(console)
    console.page.value(f"void ({axe})" if axe.startswith("(") else axe + ";0")
    found = {}
    for theme in ("light", "dark", "dark, on a phone", "light, on a phone"):
        colour, _, where = theme.partition(", ")
        console.page.value(f"void (document.documentElement.dataset.theme = '{colour}')")
        if where:
            narrow(console)
        for path, text in PLACES.items():
            console.go(path, text)
            answer = console.page.value(SERIOUS)
            if answer:
                found[theme, path] = answer
            assert console.page.value("document.querySelectorAll('main img').length") == 0, path
    console.page.call("Emulation.clearDeviceMetricsOverride")
    console.go("dead-letters/orders", "by hand")
    row = "[...document.querySelectorAll('main tr')].find((r) => r.innerText.includes('by hand'))"
    assert console.page.value(f"[2, 4].map((at) => {row}.cells[at].innerText)") == [EVIL, EVIL]
    # The whole of each, where all that a client wrote is shown.
    shown = {"dead-letters/orders": "orders", "schedule": "Schedule", "topics/orders": "orders"}
    for path, title in {**shown, "jobs": "Jobs"}.items():
        console.go(path, EVIL)
        row = "[...document.querySelectorAll('main tr')].find((r) => r.innerText.includes('<img'))"
        button = f"[...({row}?.querySelectorAll('button') ?? [])].at(-1)"
        console.wait(f"$('main h1').innerText === '{title}' && !!{button}")
        console.do(f"{button}.click()")
        console.wait(f"$('dialog').innerText.includes({json.dumps(EVIL)})")
        if answer := console.page.value(SERIOUS):
            found["dialog", path] = answer
        assert console.page.value("document.querySelectorAll('dialog img').length") == 0, path
        console.do("press('Close', $('dialog'))")

    assert found == {}


def test_runs_of_jobs_show_how_far_they_are_and_what_came_of_them(console):
    run = {"job": "compact", "topic": "orders"}
    at_work = {"stage": f"reading {EVIL}", "tasksDone": 3, "tasks": 8}
    console.ask("PUT", "/job-runs/compact-1", run | at_work)
    console.go("jobs", f"reading {EVIL} · 3 of 8 tasks")
    report = json.dumps({"rows": 1234, "facts": EVIL})
    ended = {"state": "done", "rows": 1234, "rowsRead": 5678, "sizeBytes": 2048, "report": report}
    console.ask("PUT", "/job-runs/compact-1", run | ended)
    console.ask("PUT", "/job-runs/report-1", {"job": "report", "state": "failed", "error": EVIL})
    for text in ("1,234", "5,678", "2.0 KiB", "done", "failed", EVIL):
        console.shows(text)
    details = "document.querySelector('[aria-label=\"Details of compact-1\"]').click()"
    console.do(details)
    console.wait("$('dialog pre').innerText.includes('\"rows\": 1234')")
    console.do("press('Close', $('dialog'))")


def test_lists_are_filtered_sorted_and_can_be_shared(console):
    for number in range(3):
        console.ask("POST", "/topics", {"topic": f"shared-{number}", "ifAbsent": True})
    console.go("topics?filter=shared-&sort=messages&descending=true", "shared-2")
    names = "[...document.querySelectorAll('tbody tr')].map((r) => r.cells[0].innerText)"
    console.page.wait(f"{names}.length === 3")
    assert console.page.value("document.querySelector('[aria-sort=descending]').innerText") == (
        "Offsets"
    )
    console.do(
        "const i = $('input[type=search]'); i.value = '-1'; i.dispatchEvent(new Event('input'))"
    )
    console.page.wait(f"JSON.stringify({names}) === '[\"shared-1\"]'")
    assert "filter=-1" in console.page.value("location.hash")


def test_a_tab_that_nobody_sees_lets_go_of_its_connection(console):
    def streams(count: int) -> str:
        metrics = "fetch('/metrics').then((answer) => answer.text())"
        return f"{metrics}.then((text) => text.includes('http_streaming_responses {count}.0'))"

    console.go("topics", "orders")
    console.page.wait(streams(1))
    console.turn_away(True)
    console.page.wait(streams(0))
    console.ask("POST", "/topics", {"topic": "meanwhile", "ifAbsent": True})
    console.turn_away(False)
    console.shows("meanwhile")


def test_the_pages_fit_a_phone(console):
    narrow(console)
    wide = {}
    paths = ("topics", "topics/orders", "schedule", "groups", "dead-letters", "cluster", "streams")
    for path in (*paths, "jobs", ""):
        console.page.value(f"void (location.hash = '#/{path}')")
        current = f"document.querySelector('nav a[aria-current]').hash === '#/{path.split('/')[0]}'"
        console.page.wait(current)
        console.page.wait("document.querySelectorAll('main h1').length === 1")
        wide[path] = console.page.value("document.documentElement.scrollWidth")
    console.ask("PUT", "/recurrences/every-morning", {"topic": "orders", "cron": "0 9 * * *"})
    console.go("schedule", "every-morning")
    table = "[...document.querySelectorAll('main table')].at(-1)"  # nothing is under its buttons
    assert console.page.value(f"{table}.offsetWidth <= {table}.parentElement.clientWidth")
    console.go("", "Messages a second")
    console.page.call("Emulation.clearDeviceMetricsOverride")
    assert {path: width for path, width in wide.items() if width > 390} == {}


FORMS = """
(async () => {
  const found = [], open = () => [...document.querySelectorAll("dialog[open]")];
  const isAction = (each) => !each.disabled && !each.closest(".choice, th, .pager, .bars");
  const close = () => open().forEach((box) => box.close());
  const look = async (button) => {
    button.click();
    if (open().length) found.push([button.textContent, await SERIOUS]);
    return open()[0];
  };
  for (const each of [...document.querySelectorAll("main button")].filter(isAction)) {
    const box = await look(each);
    // What is refused is said in the form; one that shows a thing leads to forms about it.
    const submit = box?.querySelector("button[type=submit]");
    const forms = [...(box?.querySelectorAll(".buttons button") ?? [])];
    const form = forms.map((one) => one.textContent).filter((text) => text.endsWith("…"));
    if (submit && REFUSED) {
      box.querySelectorAll(".notice").forEach((one) => one.classList.remove("hidden"));
      box.querySelectorAll(".notice").forEach((one) => { one.textContent ||= "it is refused"; });
      found.push([`${each.textContent}, refused`, await SERIOUS]);
    }
    close();
    for (const text of form) {
      each.click();
      await look([...open()[0].querySelectorAll("button")].find((one) => one.textContent === text));
      close();
    }
  }
  return found;
})()
""".replace("SERIOUS", SERIOUS).replace("REFUSED", "true")


def test_axe_finds_nothing_in_any_form_of_any_page(console, axe):
    hostile(console)
    console.page.value(f"void ({axe})" if axe.startswith("(") else axe + ";0")
    shared = {"topic": "orders", "partition": 0, "leader": "a", "epoch": 1, "committedEnd": 4}
    replica = {"name": "a", "isVoter": True, "isLinked": True, "lag": 0, "flushedEnd": 4}
    member = {"name": "b", "state": "alive", "level": 1, "http": "", "zone": "", "isSelf": True}
    answers = {"replication": {"partitions": [{**shared, "replicas": [replica]}]}}
    answer(console, **answers, members={"members": [member]})
    console.page.value(
        "import('/console/rights.js').then((m) => void (m.who().isClustered = true))"
    )
    looked_at = set()
    for path in (path for path in PLACES if path):
        console.go(path, PLACES[path])
        console.page.wait("document.querySelectorAll('main tbody tr').length > 0")
        console.page.wait("asked.every((each) => each.isTaken)")
        for button, wrong in console.page.value(FORMS):
            assert wrong == [], (path, button)
            looked_at.add(button)
    assert {
        "New topic",
        "Publish…",
        "Settings…",
        "New…",
        "Move",
        "Seek…",
        "Redrive all…",
        "Publish again…",
        "Cancel…",
        "Pause",
        "Send…",
        "Resize…",
        "Drain",
        "Forget…",
        "Purge…",
        "New topic, refused",
    } <= looked_at, looked_at


def press(console: Console, key: str, text: str = "") -> None:
    """Press a key, as a person without a mouse."""
    codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "End": 35}
    for kind in ("keyDown", "keyUp"):
        said = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        console.page.call("Input.dispatchKeyEvent", type=kind, text=text, **said)


def focus(console: Console, said: str) -> Any:
    return console.page.value(f"(() => {{ const e = document.activeElement; return {said}; }})()")


def test_all_is_reached_by_keyboard_and_the_focus_comes_back(console):
    console.ask("POST", "/topics/keys/messages", {"value": "x", "delay": "10m"})
    console.open("schedule?topic=keys")
    console.wait(
        "document.querySelectorAll('.bars button').length === 60 && !!$('td.tools button')"
    )
    console.page.call("Page.bringToFront")
    press(console, "Tab")
    assert focus(console, "e.className") == "skip"
    press(console, "Enter", "\r")
    assert (focus(console, "e.id"), console.page.value("location.hash.slice(0, 10)")) == (
        "main",
        "#/schedule",
    )
    # The bars are one stop; arrows go from one to the next, and Enter shows its messages.
    console.do("$('.bars button').focus()")
    for key in ("ArrowRight", "ArrowRight", "End"):
        press(console, key)
        assert focus(console, "e.closest('.bars') !== null && e.tabIndex") == 0
    assert focus(console, "e.nextSibling === null")
    assert console.do("return [...document.querySelectorAll('.bars [tabindex=\"0\"]')].length") == 1
    press(console, "Tab")
    assert focus(console, "e.closest('.bars')") is None
    # A form takes the focus, and gives it back to the button it came from.
    console.do("$('td.tools button').focus()")
    press(console, "Enter", "\r")
    assert focus(console, "e.closest('dialog') !== null")
    press(console, "Escape")
    console.wait("!$('dialog')")
    assert focus(console, "e.closest('td.tools') !== null && e.textContent") == "Fire now"
    names = "[...document.querySelectorAll('main button, main input, main select, nav a')]"
    named = "(each) => each.ariaLabel || each.innerText || each.labels?.length"
    assert console.page.value(f"{names}.every({named})")


def test_what_is_wrong_with_a_node_is_told_until_it_is_mended(page, tmp_path, monkeypatch):
    with aside(lambda: running_server(tmp_path)) as it:
        problem = problem_named(DISK_FULL, f"no room {EVIL}", Millis(1_800_000_000_000))
        console = Console(page, it.server.http_port)
        console.open()
        console.shows("Messages a second")
        monkeypatch.setattr(it.node, "problems", lambda: [problem])
        console.shows(f"no room {EVIL}. free space")
        monkeypatch.undo()
        console.page.wait("!document.body.innerText.includes('diskFull')")
        assert page.value("window.wrong") == []
        page.open("about:blank")
