"""A message's life by mouse alone: `make console-story`; picture by picture: `make console-shots`.

Somebody schedules a message, sees it on the timeline, has it fire, finds it among the dead letters
after a worker has refused it, mends it and redrives it. All that the person does is done by clicks
at places of the screen and by keys, as a hand would; the worker is a program. The node is one that
`waterclock up` runs, as `make run` does, in a folder of its own and on free ports. It prints when
the node was there, the first paint and the time of the story, and ends with an error if a person
who clicks every two seconds would need more than two minutes. With `--pictures` it takes those of
docs/console.md. A test goes through the same story: tests/browser/test_console_story.py.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.cli.nodes import running
from tests.kit.browser import Page, browser
from tools.console_stage import ask

FOLDER = Path("docs/console")
WIDTH, HEIGHT = 1000, 700
STEP_S = 2.0
"""What a person takes for a click, or to fill a field."""
STORY_S_MAX = 120
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
FIND = """
(() => {
  const top = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document;
  const all = [...top.querySelectorAll("main *, nav *, form *, dialog *, .buttons *")];
  const nameOf = (e) => e.name || e.textContent.trim();
  const found = all.filter((e) => e.matches("a, button, input, textarea") && !e.disabled)
    .find((e) => e.offsetWidth && nameOf(e) === WANTED);
  if (!found) return null;
  found.scrollIntoView({ block: "center" });
  const { x, y, width, height } = found.getBoundingClientRect();
  return [x + width / 2, y + height / 2];
})()
"""
CURSOR = """
(() => {
  document.querySelector("#hand")?.remove();
  const top = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  const hand = document.createElement("div");
  hand.id = "hand";
  const place = { position: "fixed", left: `${X - 11}px`, top: `${Y - 11}px` };
  const shape = { width: "22px", height: "22px", borderRadius: "50%", zIndex: 99 };
  const colour = { background: "#e8590c88", border: "2px solid #e8590c" };
  Object.assign(hand.style, place, shape, colour, { pointerEvents: "none" });
  top.append(hand);
})()
"""


class Hand:
    """A person at the screen: clicks, types, and takes a picture now and then, if there is a folder
    for them."""

    def __init__(self, page: Page, pictures: Path | None = None) -> None:
        self.seconds = 0.0
        """What a person would have taken so far."""
        self._page = page
        self._folder = pictures
        self._pictures = 0

    def sees(self, text: str) -> None:
        """Wait until a text is to be seen; a person has to wait as long."""
        began = time.monotonic()
        self._page.wait(f"document.body.innerText.includes({json.dumps(text)})")
        self.seconds += time.monotonic() - began

    def comes_to(self, title: str) -> None:
        """Wait until a page is shown."""
        self._page.wait(f"document.querySelector('main h1')?.innerText === {json.dumps(title)}")

    def clicks(self, what: str) -> None:
        """Click in the middle of what bears a name."""
        x, y = self._place(what)
        self.seconds += STEP_S
        for kind in ("mousePressed", "mouseReleased"):
            at = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            self._page.call("Input.dispatchMouseEvent", **at)

    def types(self, field: str, text: str) -> None:
        """Fill a field, instead of what stands there."""
        self.clicks(field)
        self._page.value("void document.activeElement.select?.()")
        self._page.call("Input.insertText", text=text)

    def shows(self, what: str = "") -> None:
        """Take a picture, with the mouse over what is clicked next."""
        if self._folder is None:
            return
        if what:
            x, y = self._place(what)
            self._page.value(CURSOR.replace("X -", f"{x} -").replace("Y -", f"{y} -"))
        self._pictures += 1
        self._page.picture(self._folder / f"story-{self._pictures}.webp")
        self._page.value("document.querySelector('#hand')?.remove()")

    def _place(self, what: str) -> tuple[float, float]:
        expression = FIND.replace("WANTED", json.dumps(what))
        self._page.wait(f"{expression} !== null")
        x, y = self._page.value(expression)
        return x, y


def refuse(port: int) -> None:
    """Be the worker: take the message and say that it can never be done."""
    [taken] = ask(port, "GET", "/topics/orders/messages?group=billing&limit=1&wait=20s")["messages"]
    body = {"group": "billing", "reject": [taken["lease"]], "leave": True}
    ask(port, "POST", "/topics/orders/acks", body)


def tell(hand: Hand, port: int) -> None:
    """Go through the story."""
    hand.clicks("Topics")
    hand.comes_to("Topics")
    hand.clicks("New topic")
    hand.types("topic", "orders")
    hand.clicks("Make it")
    hand.sees("No message here.")
    ask(port, "GET", "/topics/orders/messages?group=billing&limit=1&wait=0s")  # a worker is there
    hand.clicks("Publish…")
    hand.types("value", '{"order": 7, "total": "12,50"}')
    hand.types("key", "ada")
    hand.types("at", "20m")
    hand.sees("waterclock publish orders")
    hand.shows("Publish")
    hand.clicks("Publish")
    hand.sees("Stored at")
    hand.clicks("What is to come")
    hand.comes_to("Schedule")
    hand.sees("1 to come, 1 of it shown here.")
    hand.sees("12,50")
    hand.shows("Fire now")
    hand.clicks("Fire now")
    hand.clicks("Fire")
    hand.sees("Fired")
    refuse(port)
    hand.clicks("Dead letters")
    hand.comes_to("Dead letters")
    hand.clicks("orders")
    hand.sees("rejected")
    hand.shows("Show")
    hand.clicks("Show")
    hand.clicks("Edit and redrive…")
    hand.types("value", '{"order": 7, "total": 12.50}')
    hand.shows("Redrive")
    hand.clicks("Redrive")
    hand.sees("No message of this topic has failed for good.")
    hand.clicks("Topics")
    hand.comes_to("Topics")
    hand.clicks("orders")
    hand.comes_to("orders")
    hand.sees("12.50")
    hand.shows()


def main() -> int:
    """Go through it, and say how long all took."""
    parser = argparse.ArgumentParser(prog="python -m tools.console_story", description=__doc__)
    parser.add_argument("--pictures", action="store_true", help="take those of docs/console.md")
    pictures = FOLDER if parser.parse_args().pictures else None
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as profile,
        running(Path(folder)) as node,
    ):
        print(f"the node took requests after {time.monotonic() - began:.1f} s")
        with browser(Path(profile)) as page:
            port = node.shown["http_port"]
            page.open("about:blank")
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            page.call("Emulation.setDeviceMetricsOverride", **size)
            theme = {"name": "prefers-color-scheme", "value": "light"}
            page.call("Emulation.setEmulatedMedia", features=[theme])
            page.call("Page.navigate", url=f"http://localhost:{port}/")
            page.wait("!!document.querySelector('main h1')")
            page.wait(f"{PAINT} > 0")
            print(f"first paint after {page.value(PAINT):.0f} ms")
            hand = Hand(page, pictures)
            began = time.monotonic()
            tell(hand, port)
            print(f"the story took {time.monotonic() - began:.1f} s; a person {hand.seconds:.0f} s")
            assert hand.seconds < STORY_S_MAX, "the story takes longer than two minutes"
    return 0


if __name__ == "__main__":
    sys.exit(main())
