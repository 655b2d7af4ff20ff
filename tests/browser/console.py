"""The console in a browser, with what a tester needs to look at it and to use it.

What goes wrong in a page, a policy that is broken included, is in its `wrong`; what it asked the
node is in its `asked`. What answers took is told by its `clock`, which only a test sets: on a
machine that is busy all of them take long.
"""

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tests.kit.browser import ANSWER_S_MAX, TICK, Page
from tests.server.secure_serving import SecureNode

EVIL = "<img src=x onerror=\"wrong.push('ran')\">"
HOOK = """
window.wrong = [];
window.asked = [];
window.clock = 0;
performance.now = () => clock;
const ask = window.fetch;
window.fetch = async (path, options) => {
  const call = { method: options?.method ?? "GET", path: String(path), status: 0 };
  asked.push(call);
  const answer = await ask(path, options);
  call.status = answer.status;
  const json = answer.json.bind(answer);
  // Once what came has been shown: the page does so before the next task.
  answer.json = () => json().finally(() => setTimeout(() => { call.isTaken = true; }));
  call.isTaken = !/^application\\/json/.test(answer.headers.get("Content-Type"));
  return answer;
};
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


class Refused(AssertionError):
    """The node did not do what it was asked for."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status


class Console:
    """The console in the browser, and the node behind it; of a secure one, with its admin."""

    def __init__(self, page: Page, port: int, secure: SecureNode | None = None) -> None:
        self.page = page
        self.port = port
        self.secure = secure
        self.bearer = "" if secure is None else secure.admin
        """Who looks."""

    def ask(self, method: str, path: str, body: object = None, *, is_lines: bool = False) -> Any:
        """Ask the node, beside the browser; of a secure one, as its admin. Of lines, the first."""
        end = b"\n" if is_lines else b"\0"
        if self.secure is not None:
            answered = self.secure.ask(method, path, self.secure.admin, body)
            assert answered.status < 300, answered
            return json.loads(answered.body.partition(end)[0] or b"null")
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://localhost:{self.port}{path}", data, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return json.loads(answer.read().partition(end)[0] or b"null")
        except HTTPError as error:
            said = f"{method} {path}: {error.read().decode()}"
            raise Refused(error.code, said) from error

    def until(self, claim: Callable[[], bool], *, seconds_max: float = ANSWER_S_MAX) -> None:
        """Wait until a claim holds about the node."""
        deadline = time.monotonic() + seconds_max
        while not claim():
            assert time.monotonic() < deadline, "never"
            self.page.value(TICK)

    def open(self, path: str = "") -> None:
        """Load the page anew, at a place of it."""
        self.page.open("about:blank")
        self.page.call("Page.enable")
        token = json.dumps(self.bearer.removeprefix("Bearer "))
        login = f"sessionStorage.setItem('waterclock.credential', {token});" if self.bearer else ""
        hook = f"{HOOK} if (location.protocol.startsWith('http')) {{ {login} }}"
        self.page.call("Page.addScriptToEvaluateOnNewDocument", source=hook)
        scheme = "http" if self.secure is None else "https"
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

    def turn_away(self, is_hidden: bool) -> None:
        """Have the tab be one that nobody sees, or see it again."""
        hidden = f"{{ value: {json.dumps(is_hidden)}, configurable: true }}"
        self.do(f"Object.defineProperty(document, 'hidden', {hidden});")
        self.do("document.dispatchEvent(new Event('visibilitychange'));")

    def submit(self, *, is_asked: bool = False, **fields: Any) -> str:
        """Fill the form that is open and send it, once more if it asks whether one is sure; return
        the command lines it showed."""
        fills = "".join(f"fill({json.dumps(n)}, {json.dumps(v)});" for n, v in fields.items())
        self.do(fills)
        self.wait("[...document.querySelectorAll('.same pre')].every((e) => e.innerText !== '…')")
        said = self.do("return $('dialog .same').innerText")
        self.do("$('dialog button[type=submit]').click()")
        if is_asked:
            self.wait("$('dialog button[type=submit]').innerText.startsWith('Yes')")
            self.do("$('dialog button[type=submit]').click()")
        self.wait("!$('dialog')")
        return str(said)


PLACES = {
    "": "Messages a second",
    "topics": "orders",
    "topics/orders": "Partitions",
    "schedule": "Again and again",
    "groups": "Members",
    "groups/orders/g": "Generation",
    "dead-letters": "orders",
    "dead-letters/orders": "Given up",
    "streams": "Senders wait",
    f"streams/{quote(EVIL, safe='')}": "Waiting senders",
    "cluster": "(this one)",
    "jobs": "Replays that have a name",
}


def narrow(console: Console) -> None:
    """Have the window of a phone."""
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    console.page.call("Emulation.setDeviceMetricsOverride", **size)


def answer(console: Console, **answers: Any) -> None:
    """Have requests answered so, by a part of their paths."""
    console.do(f"""
      const answers = Object.entries({json.dumps(answers)}), ask = window.fetch;
      window.fetch = async (path, options) => {{
        const found = answers.find(([each]) => String(path).includes(each));
        return found ? new Response(JSON.stringify(found[1])) : ask(path, options);
      }};
    """)
