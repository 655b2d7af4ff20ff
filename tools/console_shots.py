"""Pictures of the console for its page, each looked at after a change: `make console-shots`.

A busy shop on one node is most of them; the cluster is three nodes on an etcd, the audit that of a
node that asks for credentials. `--into FOLDER` takes them elsewhere, each page in both themes and
on a phone, to look over all that there is.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import waterclock.server  # noqa: F401 - before gRPC is loaded: it sets what gRPC reads then
from tests.browser.test_console_cluster import Nodes
from tests.cluster.coordinator.etcd_servers import running as running_etcd
from tests.kit.aside import aside
from tests.kit.browser import Page, browser
from tests.server.secure_serving import secure_node
from tests.server.served import running_server
from tools.console_stage import ask, fill, remember, trade
from waterclock.history.history import STEP_MS

FOLDER = Path("docs/console")
ROWS = "document.querySelectorAll('main tbody tr').length > {}"
DIALOG = "!!document.querySelector('dialog')"
BARS = "document.querySelectorAll('.bars i').length > 70"
WIDE, PHONE = 1280, 390
FILLED_S = 2 * STEP_MS / 1_000
"""Until nothing the node samples is of filling it."""


class Shot(NamedTuple):
    """A picture, and what must hold before it is taken."""

    name: str
    place: str
    claim: str
    height: int = 760
    is_dark: bool = False
    width: int = WIDE
    click: str = ""


OF_SHOP = (
    Shot("overview", "", "document.querySelectorAll('.u-wrap').length > 5", 900, True),
    Shot("topics", "topics", ROWS.format(4), 440),
    Shot("topic", "topics/orders", ROWS.format(20), 860),
    Shot("message", "topics/orders?offset=3&partition=0&message=0/4", DIALOG, 620),
    Shot("schedule", "schedule", BARS, 860),
    Shot("groups", "groups", ROWS.format(2), 460),
    Shot("group", "groups/orders/shipping", ROWS.format(3), 620, click="Seek…"),
    Shot("dead-letters", "dead-letters/payments", ROWS.format(6), 460),
    Shot("streams", "streams", ROWS.format(2), 460),
    Shot("stream", "streams/answer-7f3c", ROWS.format(4), 560, True),
    Shot("jobs", "jobs", ROWS.format(3), 460),
    Shot("phone", "schedule", BARS, 760, True, PHONE),
)  # fmt: skip
OF_CLUSTER = (Shot("cluster", "cluster", ROWS.format(8), 760),)
DENIED = "document.body.innerText.includes('denied')"
OF_SECURE = (Shot("audit", "audit", DENIED, 520),)
PRESS = "[...document.querySelectorAll('main button')].find((b) => b.textContent === {!r}).click()"


def take(page: Page, base: str, shot: Shot, path: Path, token: str = "") -> None:
    """Open a place as a person would see it, and take its picture."""
    page.open("about:blank")
    is_phone = shot.width < WIDE
    size = {"width": shot.width, "height": shot.height, "deviceScaleFactor": 1, "mobile": is_phone}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    theme = {"name": "prefers-color-scheme", "value": "dark" if shot.is_dark else "light"}
    page.call("Emulation.setEmulatedMedia", features=[theme])
    page.call("Page.enable")
    login = f"sessionStorage.setItem('waterclock.credential', '{token}')"
    if token:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=login)
    page.call("Page.navigate", url=f"{base}/#/{shot.place}")
    page.wait("document.querySelector('.state')?.innerText.includes('live')")
    page.wait(shot.claim)
    if shot.click:
        page.value(PRESS.format(shot.click))
    page.value("new Promise((done) => setTimeout(done, 1500))")
    page.picture(path)


def shoot(
    page: Page, base: str, shots: tuple[Shot, ...], into: Path | None, token: str = ""
) -> None:
    for shot in shots:
        if into is None:
            take(page, base, shot, FOLDER / f"{shot.name}.webp", token)
            continue
        for is_dark in (False, True):
            for width in (WIDE, PHONE):
                name = f"{shot.name}-{width}-{'dark' if is_dark else 'light'}.png"
                each = shot._replace(is_dark=is_dark, width=width, height=max(760, shot.height))
                take(page, base, each, into / name, token)


@contextmanager
def shop() -> Iterator[str]:
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder, aside(lambda: running_server(Path(folder))) as it:
        port, is_over = it.server.http_port, threading.Event()
        fill(port, rng)
        trading = threading.Thread(target=trade, args=(port, is_over))
        trading.start()
        try:
            time.sleep(FILLED_S)
            remember(it, rng)
            yield f"http://localhost:{port}"
        finally:
            is_over.set()
            trading.join()


@contextmanager
def cluster() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, running_etcd(Path(folder)) as members:
        nodes = Nodes(Path(folder), members[0].endpoint)
        try:
            nodes.start(*nodes.ports)
            port = nodes.ports["a"]
            for topic, partitions in (("orders", 4), ("payments", 2), ("reminders", 2)):
                ask(port, "POST", "/topics", {"topic": topic, "partitions": partitions})
            for number in range(200):
                ask(port, "POST", "/topics/orders/messages", {"value": "x", "key": f"{number}"})
            for number in range(60):
                ask(port, "POST", "/streams/send", {"streamId": f"s{number}", "message": number})
            ask(port, "POST", "/cluster/drain", {"node": "c"})
            yield f"http://localhost:{port}"
        finally:
            nodes.kill_all()


@contextmanager
def secure() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder, secure_node(Path(folder) / "node") as node:
        reader = node.add("reports", read="orders")
        shop = node.add("shop", publish="*", schedule="*")
        for topic in ("orders", "payments"):
            node.ask("POST", "/topics", shop, {"topic": topic})
        for path in ("/topics/payments", "/topics/payments/scheduled", "/metrics"):
            node.ask("GET", path, reader)
        node.ask("POST", "/topics/orders/messages", reader, {"value": "x"})
        node.ask("PATCH", "/topics/orders", node.admin, {"retentionMs": 86_400_000})
        node.ask("PUT", "/recurrences/nightly", shop, {"topic": "orders", "cron": "0 2 * * *"})
        node.ask("DELETE", "/topics/orders", shop)
        yield f"https://localhost:{node.port}", node.admin.removeprefix("Bearer ")


def main() -> int:
    """Take all of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.console_shots", description=__doc__)
    parser.add_argument("--into", type=Path, help="look over all pages: a folder for the pictures")
    into = parser.parse_args().into
    (into or FOLDER).mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as profile,
        browser(Path(profile), "--ignore-certificate-errors") as page,
    ):
        with shop() as base:
            shoot(page, base, OF_SHOP, into)
        with secure() as (base, token):
            shoot(page, base, OF_SECURE, into, token)
        with cluster() as base:
            shoot(page, base, OF_CLUSTER, into)
    return 0


if __name__ == "__main__":
    sys.exit(main())
