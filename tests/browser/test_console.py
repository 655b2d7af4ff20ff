"""The console in a real browser: each page, what can be done there, and whom it believes.

One node and one browser serve all tests. Its names and messages are hostile: whatever they say must
be shown, and nothing of it run. A page that fails, or breaks the policy it came with, says so in
`wrong`, which every test looks at last.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from benchmarks.peers.cache import Absent, npm
from benchmarks.peers.server import free_port
from tests.kit.aside import aside
from tests.kit.browser import Page, browser
from tests.server.served import running_server
from waterclock.model.sections import ClusterConfig

AXE = ("axe-core", "4.14.0")
EVIL = "<img src=x onerror=\"wrong.push('ran')\">"
HOOK = """
window.wrong = [];
addEventListener("error", (event) => wrong.push(event.message));
addEventListener("securitypolicyviolation", (event) => wrong.push(event.violatedDirective));
"""
SERIOUS = """
axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "best-practice"]}).then((found) =>
  found.violations.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => [each.id, each.nodes.map((node) => node.html).slice(0, 3)]))
"""
TOOLS = """
const $ = (where) => document.querySelector(where);
const press = (text, within = document) => {
  const all = [...within.querySelectorAll("button, a")];
  const found = all.find((each) => each.textContent.trim() === text && !each.disabled);
  if (!found) throw new Error(`no button ${text}: ${all.map((each) => each.textContent)}`);
  found.click();
};
const fill = (name, text) => {
  const field = $(`dialog [name="${name}"]`);
  if (field.type === "checkbox") field.checked = text; else field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
};
"""


class Console:
    """The console in the browser, and the node behind it."""

    def __init__(self, page: Page, port: int) -> None:
        self.page = page
        self.port = port

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask the node, beside the browser."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://localhost:{self.port}{path}", data, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from error

    def open(self, path: str = "", scheme: str = "http") -> None:
        """Load the page anew, at a place of it."""
        self.page.open("about:blank")
        self.page.call("Page.enable")
        self.page.call("Page.addScriptToEvaluateOnNewDocument", source=HOOK)
        self.page.call("Page.navigate", url=f"{scheme}://localhost:{self.port}/#/{path}")
        self.page.wait("!!document.querySelector('main h1')")

    def go(self, path: str, claim: str) -> None:
        """Follow the address of a place, and wait until something holds there."""
        self.page.value(f"void (location.hash = {json.dumps('#/' + path)})")
        self.shows(claim)

    def shows(self, text: str) -> None:
        """Wait until a text is to be seen in the page."""
        self.page.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def do(self, script: str) -> Any:
        """Run a script with a few tools of a tester."""
        return self.page.value(f"(() => {{ {TOOLS} {script} }})()")

    def wait(self, claim: str) -> None:
        self.page.wait(f"(() => {{ {TOOLS} return {claim}; }})()")

    def submit(self, **fields: Any) -> str:
        """Fill the form that is open and send it; return the command lines it showed."""
        fills = "".join(f"fill({json.dumps(n)}, {json.dumps(v)});" for n, v in fields.items())
        said = self.do(f"{fills} return $('dialog .same').innerText;")
        self.do("$('dialog button[type=submit]').click()")
        self.wait("!$('dialog')")
        return str(said)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    with browser(folder, "--ignore-certificate-errors", "--window-size=1280,900") as page:
        yield page


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("node")
    with aside(lambda: running_server(folder)) as it:
        yield it.server.http_port


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return (npm(*AXE) / "axe.min.js").read_text()
    except Absent as absent:
        pytest.skip(f"axe-core is not to be had: {absent}")


@pytest.fixture
def console(page: Page, node: int) -> Iterator[Console]:
    made = Console(page, node)
    made.ask("POST", "/topics", {"topic": "orders", "partitions": 2, "ifAbsent": True})
    made.open()
    yield made
    assert page.value("window.wrong") == []


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


PLACES = {
    "": "Messages a second",
    "topics": "orders",
    "topics/orders": "Partitions",
    "schedule": "Again and again",
    "groups": "Members",
    "groups/orders/g": "Generation",
    "dead-letters": "orders",
    "dead-letters/orders": "Given up",
    "streams": "Waiting",
    f"streams/{quote(EVIL, safe='')}": "Waiting senders",
    "cluster": "(this one)",
    "jobs": "Replays that have a name",
}


def narrow(console: Console) -> None:
    """Have the window of a phone."""
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    console.page.call("Emulation.setDeviceMetricsOverride", **size)


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


def test_a_message_is_made_published_seen_and_its_digits_stay(console):
    console.go("topics", "New topic")
    console.do("press('New topic')")
    console.do("fill('topic', \"it's new\"); $('dialog button[type=submit]').click()")
    console.wait("$('dialog .notice.bad').innerText.includes('topic')")
    said = console.do("return $('dialog .same').innerText")
    assert "waterclock topics create 'it'\\''s new'" in said
    console.submit(topic="letters", partitions="2")
    console.shows("No message here.")
    console.do("press('Follow live')")
    console.shows("waiting for messages")
    console.do("press('Publish…')")
    console.do("fill('headers', 'nonsense'); $('dialog button[type=submit]').click()")
    console.wait("$('dialog .notice.bad').innerText.includes('write name=value')")
    # What a client wrote is no option of the command that the reader pastes.
    console.do("fill('headers', ''); fill('key', '-k'); fill('value', '--file=/etc/passwd')")
    said = console.do("return $('dialog .same').innerText")
    assert "waterclock publish --key -k -- letters --file=/etc/passwd" in said
    said = console.submit(value='{"n": 12345678901234567890}', key="ada", headers="a=b=c")
    assert "-H a=b=c" in said
    assert "/topics/letters/messages" in said
    console.shows("12345678901234567890")
    console.do("$('td button.plain').click()")
    console.wait("$('dialog .message').innerText.includes('\"n\": 12345678901234567890')")


def test_what_is_scheduled_is_fired_moved_and_cancelled(console):
    for number in range(3):
        body = {"value": f"wake {number}", "key": f"k{number}", "delay": "2h"}
        console.ask("POST", "/topics/clock/messages", body)
    console.go("schedule?topic=clock", "wake 2")

    def row(key: str) -> str:
        return f"[...document.querySelectorAll('tr')].find((r) => r.innerText.includes('{key}'))"

    console.do(f"press('Fire now', {row('wake 0')})")
    said = console.submit()
    assert "waterclock schedule move clock" in said
    console.do(f"press('Cancel', {row('wake 1')})")
    console.submit()
    console.do(f"press('Move', {row('wake 2')})")
    console.submit(at="2099-01-02T03:04:05")
    console.page.wait("!document.body.innerText.includes('wake 1')")
    console.shows("2099-01-02")
    left = console.ask("GET", "/topics/clock/scheduled?values=true")["scheduled"]
    assert [each["value"] for each in left] == ["wake 2"]

    console.do("press('New…')")
    console.do("fill('rule', '0 9 * * MON'); fill('zone', 'Europe/Berlin')")
    console.shows("Next ten times")
    console.submit(name="weekly", topic="clock", value="report")
    console.shows("weekly")
    console.do("press('weekly')")
    console.wait("document.querySelectorAll('dialog li').length === 10")
    assert console.do("return $('dialog li').innerText").startswith("Mon")
    console.do("press('Close')")
    console.do(f"press('Pause', {row('weekly')})")
    assert "waterclock schedule pause weekly" in console.submit()
    console.shows("paused")
    [kept] = console.ask("GET", "/recurrences?topic=clock")["recurrences"]
    assert (kept["isPaused"], kept["nextMs"], kept["message"]["value"]) == (True, 0, "report")
    console.do(f"press('Resume', {row('weekly')})")
    assert "/recurrences/weekly/resume" in console.submit()
    console.page.wait("!document.querySelector('main').innerText.includes('paused')")
    console.do(f"press('End', {row('weekly')})")
    console.submit()
    console.page.wait("!document.querySelector('main').innerText.includes('weekly')")


def test_dead_letters_are_edited_redriven_and_purged(console):
    messages = [{"value": f"bad {n}", "key": "k"} for n in range(4)]
    console.ask("POST", "/topics/mail/messages", {"messages": messages})
    leases: list[str] = []
    while len(leases) < 4:
        taken = console.ask("GET", "/topics/mail/messages?group=g&limit=4&wait=5s")
        leases += [each["lease"] for each in taken["messages"]]
    console.ask("POST", "/topics/mail/acks", {"group": "g", "reject": leases, "leave": True})
    console.go("dead-letters/mail", "bad 3")

    # What the node has under that id, it does not store again: the letter must not go for it.
    twice = {"value": "other", "messageId": "redrive/mail/0/3"}
    console.ask("POST", "/topics/mail/messages", twice)
    console.do(
        "press('Show', [...document.querySelectorAll('tr')].find((each) => "
        "each.innerText.includes('bad 3')))"
    )
    console.do("press('Edit and redrive…')")
    console.submit(value="lost")
    console.shows("it stays on the list")
    console.shows("bad 3")
    console.do("press('Show')")
    console.do("press('Edit and redrive…')")
    said = console.submit(value="mended")
    [curl] = [line for line in said.splitlines() if line.startswith("curl ")]
    publish, purge = curl.split(" | grep -q '\"isNew\":true' && curl ")
    assert '/topics/mail/messages -d \'{"value":"mended"' in publish
    assert '/topics/mail/dead-letters/purge -d \'{"positions":[{' in purge
    assert " --json | grep -q '\"is_new\": true' && waterclock dlq purge mail " in said
    console.page.wait("!document.body.innerText.includes('bad 0')")
    console.do("$('tbody input').click()")
    console.do("press('Redrive 1…')")
    console.submit()
    console.page.wait("!document.body.innerText.includes('bad 1')")
    console.do("press('Purge all…')")
    said = console.submit()
    assert "waterclock dlq purge mail --all" in said
    console.shows("No message of this topic has failed for good.")
    again = console.ask("GET", "/topics/mail/messages?group=h&limit=9&wait=5s&start=earliest")
    assert {each["value"] for each in again["messages"]} >= {"mended", "bad 1"}


def test_a_group_is_moved_with_a_preview_and_a_stream_is_followed(console):
    console.ask("POST", "/topics/jobs/messages", {"messages": [{"value": "a"}, {"value": "b"}]})
    taken = console.ask("GET", "/topics/jobs/messages?group=g&limit=9&wait=5s")["messages"]
    leases = [each["lease"] for each in taken]
    console.ask("POST", "/topics/jobs/acks", {"group": "g", "ack": leases, "leave": True})
    console.go("groups/jobs/g", "nobody")
    console.do("press('Seek…')")
    console.shows("come again")
    assert "--to latest" in console.submit(to="latest")

    console.ask("POST", "/streams/send", {"streamId": "chat", "message": {"token": "one"}})
    console.go("streams/chat", "Waiting senders")
    console.do("press('Follow live')")
    console.shows("one")
    console.do("press('Send…')")
    console.submit(message='{"token": "two"}')
    console.shows("two")


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


def test_a_stream_is_resized_and_a_topic_gets_other_settings(console):
    console.ask("POST", "/streams/send", {"streamId": "ring", "message": "one"})
    console.go("streams/ring", "Waiting senders")
    console.do("press('Resize…')")
    assert "waterclock streams resize ring 7" in console.submit(size="7")
    console.shows("Resized")
    assert console.ask("GET", "/streams/ring")["inMemoryStreamSize"] == 7

    console.ask("POST", "/topics", {"topic": "grown", "partitions": 1, "ifAbsent": True})
    console.go("topics/grown", "Partitions")
    console.page.wait("document.body.innerText.includes('Settings…')")
    console.do("press('Settings…')")
    said = console.submit(partitions="3", retention="48", retries="5")
    assert "waterclock topics update grown --partitions 3 --retention 48h --retries 5" in said
    console.shows("Changed")
    changed = console.ask("GET", "/topics/grown")
    assert len(changed["partitions"]) == 3
    settings = changed["settings"]
    assert (settings["retentionMs"], settings["retriesMax"]) == (48 * 3_600_000, 5)


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
    def turn(is_hidden: str) -> None:
        hidden = f"{{ value: {is_hidden}, configurable: true }}"
        console.do(f"Object.defineProperty(document, 'hidden', {hidden});")
        console.do("document.dispatchEvent(new Event('visibilitychange'));")

    def streams(count: int) -> str:
        metrics = "fetch('/metrics').then((answer) => answer.text())"
        return f"{metrics}.then((text) => text.includes('http_streaming_responses {count}.0'))"

    console.go("topics", "orders")
    console.page.wait(streams(1))
    turn("true")
    console.page.wait(streams(0))
    console.ask("POST", "/topics", {"topic": "meanwhile", "ifAbsent": True})
    turn("false")
    console.shows("meanwhile")


def test_the_pages_fit_a_phone_and_are_reached_by_keyboard(console):
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
    console.page.call("Page.bringToFront")
    for _ in range(2):
        for kind in ("keyDown", "keyUp"):
            tab = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
            console.page.call("Input.dispatchKeyEvent", type=kind, **tab)

    assert {path: width for path, width in wide.items() if width > 390} == {}
    assert console.page.value("document.activeElement.tagName") in ("A", "BUTTON")


@contextmanager
def restartable(folder: Path) -> Iterator[tuple[int, Any]]:
    """A node that can be taken away and started again at the same port."""
    port = free_port()
    with ExitStack() as stack:

        def start() -> None:
            cluster = ClusterConfig(grpc_port=0, http_port=port)
            stack.enter_context(aside(lambda: running_server(folder, cluster=cluster)))

        start()
        yield port, (stack, start)


def test_a_node_that_dies_and_comes_back_is_shown_again_without_a_reload(page, tmp_path):
    with restartable(tmp_path) as (port, (stack, start)):
        console = Console(page, port)
        console.ask("POST", "/topics", {"topic": "before"})
        console.open("topics")
        console.shows("before")
        stack.close()
        console.shows("The node does not answer")
        start()
        console.ask("POST", "/topics", {"topic": "after"})
        console.shows("after")
        page.wait("document.querySelector('.away').classList.contains('hidden')")
        assert page.value("window.wrong") == []
        page.open("about:blank")
