"""A busy shop on a node, for pictures of the console: orders, reminders, and what went wrong."""

import json
import math
import random
import threading
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.request import Request, urlopen

from tests.server.served import Served
from waterclock.history.history import HOUR_SLOTS, STEP_MS, Sample
from waterclock.model.units import MIB
from waterclock.runtime.clock import SystemClock

NAMES = ("ada", "alan", "barbara", "edsger", "grace", "linus")


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
    ask(port, "PUT", "/recurrences/close-the-books", {
        "topic": "payments", "cron": "30 18 L * *", "zone": "America/New_York", "value": "close",
    })  # fmt: skip
    ask(port, "PUT", "/recurrences/heartbeat", {"topic": "emails", "every": "5m", "value": "beat"})
    fail(port, rng)
    chat(port)
    run_jobs(port)


def fail(port: int, rng: random.Random) -> None:
    """Have payments that nobody could take."""
    payments = [
        {
            "json": {"order": n, "card": f"****{rng.randrange(1000, 9999)}", "total": f"{n},50"},
            "key": rng.choice(NAMES),
            "headers": {"trace": f"{rng.randrange(1 << 40):010x}"},
        }
        for n in range(7)
    ]
    ask(port, "POST", "/topics/payments/messages", {"messages": payments})
    left = len(payments)
    while left:
        path = "/topics/payments/messages?group=charging&limit=9&wait=1s&start=earliest"
        leases = [each["lease"] for each in ask(port, "GET", path)["messages"]]
        ask(port, "POST", "/topics/payments/acks", {"group": "charging", "reject": leases})
        left -= len(leases)


def chat(port: int) -> None:
    """Have streams, as an assistant that writes word by word makes them."""
    words = ["It", "is", "a", "clock", "that", "runs", "on", "water"]
    for name in ("answer-7f3c", "answer-81aa", "answer-9e02"):
        for word in words[: 4 + len(name) % 5]:
            message = {"streamId": name, "message": {"token": word}, "inMemoryStreamSize": 100}
            ask(port, "POST", "/streams/send", message)
    for _ in range(2):  # who waits for a question
        threading.Thread(target=wait_for_question, args=(port,), daemon=True).start()


def wait_for_question(port: int) -> None:
    with suppress(OSError, HTTPException):  # until the node is taken away
        ask(port, "GET", "/streams/receive?streamId=questions&timeoutSeconds=3600")


def run_jobs(port: int) -> None:
    """Have runs of jobs, one of which failed."""
    report = {"rows": 48_213, "late": 12, "topics": ["orders", "payments"]}
    for name, run in {
        "report-1": {"job": "report", "state": "done", "rows": 48_213, "rowsRead": 48_225,
                     "sizeBytes": 3_310_000, "report": json.dumps(report)},
        "compact-4": {"job": "compact", "topic": "orders", "state": "done", "rowsRead": 912_034,
                      "rows": 300_112, "sizeBytes": 41_000_000},
        "ingest-2": {"job": "ingest", "topic": "payments", "state": "failed", "rowsRead": 1_200,
                     "rows": 0, "rejected": 1_200, "error": "column total: '12,50' is no number"},
        "report-2": {"job": "report", "stage": "reading orders", "tasksDone": 5, "tasks": 8,
                     "rowsRead": 21_870},
    }.items():  # fmt: skip
        ask(port, "PUT", f"/job-runs/{name}", run)


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
        if rng.random() < 0.05:
            soon = {"value": "beep", "delay": f"{rng.uniform(2, 90):.2f}s"}
            ask(port, "POST", "/topics/emails/messages", soon)


def remember(it: Served, rng: random.Random) -> None:
    """Give the node an hour to look back on."""
    history, now_ms = it.node.recorder.history, SystemClock().now_ms()
    for slot in range(HOUR_SLOTS):
        wave = 1 + 0.4 * math.sin(slot / 60) + rng.uniform(-0.08, 0.08)
        busy = 400 * wave
        late = rng.choice((25.0, 25.0, 50.0, 50.0, 75.0, 150.0 if slot % 90 < 6 else 50.0))
        if 80 < HOUR_SLOTS - slot < 105:  # the machine was busy with something else
            late = 1_000.0
        node = [
            busy, busy * 0.97, busy * 0.96, 0.5 * wave, 0.2, 1.5, 12 * wave, 11 * wave, late,
            late * 2, 900 + 200 * wave, 300 * wave, 80 * wave, 700 * MIB + slot * MIB / 4,
            80_000 * MIB, 210 * MIB, 0.11 * wave,
        ]  # fmt: skip
        topics = {
            "orders": (busy * 0.7, busy * 0.68, 200 * wave, 0.0, 0.0, math.nan),
            "reminders": (0.4 * wave, 0.4 * wave, 0.0, 900.0, 0.5 * wave, late * 2),
        }
        history.take(Sample(node, topics), now_ms - (HOUR_SLOTS - slot) * STEP_MS)
