"""The console: what ten open pages cost a node with a thousand topics, and what a page loads.

    python -m benchmarks.console              the table, then one line of JSON
    python -m benchmarks.console --record     also writes RESULTS.md

The node has 1,000 topics, every tenth with a group, every twentieth with messages to come, and 50
streams. Its processor time is read from the system, in turns: with nobody looking, with one page
open, and with ten, each at the view and the order that people have, and each asking for the rest of
what it shows as often as the page does. What is idle without them is subtracted, so the cost is
that of the pages alone.
"""

import argparse
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import NamedTuple

from benchmarks.harness import Bar, Report, rounds_of, scale, scaled
from benchmarks.machine import facts, scratch_folder
from benchmarks.node.running import running
from benchmarks.peers.server import Server, cpu_seconds
from benchmarks.recording import options_of
from waterclock.server.console.assets import assets

ROUNDS = 5
TOPICS = 1_000
STREAMS = 50
SECONDS = 10.0
COST_BAR = Bar(3.0, is_floor=False)
SIZE_BAR = Bar(300.0, is_floor=False)


class Looking(NamedTuple):
    """A page: what it is told, and what it asks for every so many seconds."""

    view: str
    asks: Mapping[float, Sequence[str]] = {}


PAGES = (
    Looking("view=overview"),
    Looking("view=topics&limit=50"),
    Looking("view=topics&sort=in&descending=true&limit=50"),
    Looking(
        "view=topics&sort=pending&descending=true&limit=200",  # the schedule
        {
            5.0: [
                "/scheduled/count?fromMs={now}&stepMs=60000&steps=60",
                "/scheduled?limit=50&values=true",
                "/recurrences",
            ],
            20.0: ["/history?range=hour"],
        },
    ),
    Looking("view=topics&filter=7&limit=50"),
    Looking(
        "view=overview",  # a topic
        {
            5.0: [
                "/topics/topic-0",
                "/cluster/replication?topic=topic-0",
                "/history?topic=topic-0",
            ]
        },
    ),
    Looking("view=groups&limit=50"),
    Looking("view=overview", {2.0: ["/topics/topic-0/groups/g"]}),  # of a group
    Looking("view=deadLetters&limit=50"),
    Looking(
        "view=overview",  # streams
        {5.0: ["/streams?limit=50&start=0", *(f"/streams/stream-{n}" for n in range(STREAMS))]},
    ),
)


def ask(server: Server, method: str, path: str, body: object = None) -> None:
    """Ask the node for something."""
    data = None if body is None else json.dumps(body).encode()
    url = f"http://127.0.0.1:{server.port}{path}"
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method)) as answer:
        answer.read()


def fill(server: Server) -> None:
    """Have topics, groups and streams."""
    for number in range(scaled(TOPICS, least=20)):
        topic = f"topic-{number}"
        ask(server, "POST", f"/topics/{topic}/messages", {"value": "x"})
        if number % 20 == 0:
            later = [{"value": "x", "delay": f"{n + 1}m"} for n in range(50)]
            ask(server, "POST", f"/topics/{topic}/messages", {"messages": later})
        if number % 10 == 0:
            ask(server, "GET", f"/topics/{topic}/messages?group=g&limit=1&wait=0s")
    for number in range(STREAMS):
        ask(server, "POST", "/streams/send", {"streamId": f"stream-{number}", "message": "x"})


@contextmanager
def looking(server: Server, looks: Sequence[Looking]) -> Iterator[None]:
    """Have pages open, and read what they are told, until the end of the block."""
    is_over = threading.Event()
    pages = [
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/console/live?{look.view}")
        for look in looks
    ]

    def poll(seconds: float, paths: Sequence[str]) -> None:
        line = HTTPConnection("127.0.0.1", server.port)
        while True:
            for path in paths:
                line.request("GET", path.format(now=int(time.time() * 1_000)))
                answer = line.getresponse()
                assert answer.status == 200, path
                answer.read()
            if is_over.wait(seconds):
                line.close()
                return

    def read(page: "urllib.request._UrlopenRet") -> None:
        while not is_over.is_set():
            page.readline()

    polls = [item for look in looks for item in look.asks.items()]
    threads = [threading.Thread(target=read, args=(page,)) for page in pages]
    threads += [threading.Thread(target=poll, args=item) for item in polls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        for page in pages:
            page.close()


def percent(server: Server, looks: Sequence[Looking]) -> float:
    """Give what the node takes of a core while pages are open."""
    with looking(server, looks):
        began, before = time.monotonic(), cpu_seconds(server.group)
        time.sleep(max(1.0, SECONDS * scale()))
        spent = cpu_seconds(server.group) - before
        return 100 * spent / (time.monotonic() - began)


def main() -> None:
    """Run everything."""
    from benchmarks.display import progress

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.console", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options = options_of(parser)
    samples: dict[str, list[float]] = {"idle": [], "one": [], "ten": []}
    with scratch_folder() as scratch:
        report = Report("console", facts(scratch, scale=scale()))
        with (
            running(scratch, is_http=True) as server,
            progress("console", steps=1 + 3 * rounds_of(ROUNDS)) as tick,
        ):
            tick("topics")
            fill(server)
            for _ in range(rounds_of(ROUNDS)):
                for name, looks in (("idle", ()), ("one", PAGES[1:2]), ("ten", PAGES)):
                    tick(name)
                    samples[name].append(percent(server, looks))
    for name in ("one", "ten"):
        costs = [max(0.0, a - b) for a, b in zip(samples[name], samples["idle"], strict=True)]
        bar = COST_BAR if name == "ten" else None
        report.add(f"pages_{name}_percent", costs, "% of a core", bar=bar)
    report.add("idle_percent", samples["idle"], "% of a core", note="nobody looks")
    sizes = [sum(len(asset.zipped) for asset in assets().values()) / 1024]
    report.add("assets_kib", sizes, "KiB", bar=SIZE_BAR, note="all files, compressed")
    report.finish()
    if options.record:
        report.record("python -m benchmarks.console --record")
    report.publish()


if __name__ == "__main__":
    main()
