"""Pictures of the console for its page, of a node that plays a busy shop: `make console-shots`."""

import json
import math
import random
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.kit.aside import aside
from tests.kit.browser import Page, browser
from tests.server.served import Served, running_server
from waterclock.history.history import HOUR_SLOTS, STEP_MS, Sample
from waterclock.model.units import MIB
from waterclock.runtime.clock import SystemClock

FOLDER = Path("docs/console")
NAMES = ("ada", "alan", "barbara", "edsger", "grace", "linus")
SHOTS = (
    ("overview", "", 1280, 900, True, "document.querySelectorAll('.u-wrap').length > 5"),
    ("schedule", "schedule", 1280, 760, False, "document.querySelectorAll('.bars i').length > 50"),
    ("topic", "topics/orders", 1280, 860, False, "document.querySelectorAll('td.body').length > 9"),
    ("phone", "schedule", 390, 760, True, "document.querySelectorAll('.bars i').length > 50"),
)
"""Name, place, width, height, whether in the dark, and what must hold before."""


def ask(port: int, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"http://localhost:{port}{path}", data, method=method)) as answer:
        return json.loads(answer.read() or b"null")


def fill(port: int, rng: random.Random) -> None:
    """Have topics, what is to come, a group that is behind, and dead letters."""
    for topic, partitions in (("orders", 4), ("payments", 2), ("emails", 2), ("reminders", 2)):
        ask(port, "POST", "/topics", {"topic": topic, "partitions": partitions})
    orders = [
        {
            "json": {
                "order": n,
                "customer": rng.choice(NAMES),
                "total": rng.randrange(100, 20_000),
            },
            "key": rng.choice(NAMES),
        }
        for n in range(400)
    ]
    ask(port, "POST", "/topics/orders/messages", {"messages": orders})
    later = [
        {
            "value": f"call {rng.choice(NAMES)}",
            "key": rng.choice(NAMES),
            "delay": f"{int(rng.expovariate(1 / 2_400)) + 20}s",
        }
        for _ in range(900)
    ]
    ask(port, "POST", "/topics/reminders/messages", {"messages": later})
    weekly = {"topic": "emails", "cron": "0 9 * * MON", "zone": "Europe/Berlin", "value": "report"}
    ask(port, "PUT", "/recurrences/weekly-report", weekly)
    ask(port, "GET", "/topics/orders/messages?group=billing&limit=50&wait=1s")


def trade(port: int, is_over: threading.Event) -> None:
    """Publish and consume until told that it is over."""
    rng = random.Random(11)
    while not is_over.wait(0.1):
        orders = [
            {"json": {"order": rng.randrange(10**6)}, "key": rng.choice(NAMES)}
            for _ in range(rng.randrange(25, 40))
        ]
        ask(port, "POST", "/topics/orders/messages", {"messages": orders})
        taken = ask(port, "GET", "/topics/orders/messages?group=shipping&limit=50&wait=0s")
        done = {"group": "shipping", "ack": [each["lease"] for each in taken["messages"]]}
        ask(port, "POST", "/topics/orders/acks", done)
        soon = [{"value": "beep", "delay": f"{rng.uniform(0.2, 3):.2f}s"} for _ in range(3)]
        ask(port, "POST", "/topics/emails/messages", {"messages": soon})


def remember(it: Served, rng: random.Random) -> None:
    """Give the node an hour to look back on."""
    history, now_ms = it.node.recorder.history, SystemClock().now_ms()
    for slot in range(HOUR_SLOTS):
        wave = 1 + 0.4 * math.sin(slot / 60) + rng.uniform(-0.08, 0.08)
        busy = 400 * wave
        late = rng.choice((25.0, 25.0, 50.0, 50.0, 75.0, 150.0 if slot % 90 < 6 else 50.0))
        node = [
            busy, busy * 0.97, busy * 0.96, 30 * wave, 0.2, 1.5, 12 * wave, 11 * wave, late,
            late * 2, 900 + 200 * wave, 300 * wave, 80 * wave, 700 * MIB + slot * MIB / 4,
            80_000 * MIB, 210 * MIB, 0.11 * wave,
        ]  # fmt: skip
        topics = {"orders": (busy * 0.7, busy * 0.68, 200 * wave, 0.0)}
        history.take(Sample(node, topics), now_ms - (HOUR_SLOTS - slot) * STEP_MS)


def shoot(page: Page, port: int) -> None:
    for name, place, width, height, is_dark, claim in SHOTS:
        page.open("about:blank")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        theme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[theme])
        page.call("Page.navigate", url=f"http://localhost:{port}/#/{place}")
        page.wait(claim)
        page.wait("document.querySelector('.state').innerText.includes('live')")
        page.value("new Promise((done) => setTimeout(done, 1500))")
        page.picture(FOLDER / f"{name}.png")


def main() -> int:
    """Take all of them."""
    FOLDER.mkdir(exist_ok=True)
    rng = random.Random(7)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as profile,
        aside(lambda: running_server(Path(folder))) as it,
        browser(Path(profile)) as page,
    ):
        remember(it, rng)
        port, is_over = it.server.http_port, threading.Event()
        fill(port, rng)
        trading = threading.Thread(target=trade, args=(port, is_over))
        trading.start()
        try:
            shoot(page, port)
        finally:
            is_over.set()
            trading.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
