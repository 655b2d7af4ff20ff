"""A real browser without a screen: Chromium, spoken to over a pipe (the DevTools protocol)."""

import base64
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.cache import Absent, Programs, debian
from tests.kit.needs import claim
from tests.stores.servers.registry import reason_to_skip

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
WINDOW = "--window-size=900,700"
TICK = "new Promise(done => setTimeout(done, 20))"
ANSWER_S_MAX = 30
"""How long the browser may take: whoever waits for it in a thread cannot be cancelled."""
HIGH = 20
"""File numbers from here on are nobody's."""


class Page:
    """One page in the browser, at one address after the other."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = os.fdopen(reading, "rb", buffering=0)
        self._writing = writing
        self._rest = b""
        self._number = 0
        self._session = ""
        self._target = ""

    def open(self, url: str) -> None:
        """Show the page at an address, as if a person had typed it; the one before is closed."""
        last, self._session = self._target, ""
        self._target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=self._target, flatten=True)
        if last:
            self.call("Target.closeTarget", targetId=last)
        self._session = attached["sessionId"]
        self.call("Page.navigate", url=url)  # answered once the old page is gone

    def wait(self, claim: str) -> None:
        """Wait until a claim in JavaScript holds on the page."""
        deadline = time.monotonic() + ANSWER_S_MAX
        while not self.value(claim):
            if time.monotonic() >= deadline:
                shown = self.value("document.body.innerText")
                raise AssertionError(f"never: {claim}\nThe page shows:\n{shown}")
            self.call("Runtime.evaluate", expression=TICK, awaitPromise=True)

    def value(self, expression: str) -> Any:
        """Return what an expression in JavaScript gives; a promise, once it is kept."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write what the page looks like: as PNG, or as WebP, which takes a third of the bytes."""
        form = {"format": "webp", "quality": 82} if path.suffix == ".webp" else {"format": "png"}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **form)["data"]))

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the browser; return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reading], [], [], ANSWER_S_MAX)
            assert ready, "the browser does not answer"
            data = self._reading.read(65_536)
            assert data, "the browser has gone"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)


def found() -> Programs:
    """Give Chromium, the system's or Debian's; skips the test if it cannot be had."""
    try:
        return debian("chromium", ["chromium"])
    except Absent as absent:
        pytest.skip(reason_to_skip("debian", absent))


@contextmanager
def browser(folder: Path, *flags: str) -> Iterator[Page]:
    """Run Chromium for as long as the block lasts."""
    claim("browser")
    programs = found()
    command = [_binary(programs), *FLAGS, WINDOW, *flags, f"--user-data-dir={folder}"]
    command.append("--remote-debugging-pipe")
    theirs_in, ours_out = _pipe()
    ours_in, theirs_out = _pipe()
    silent = os.open(os.devnull, os.O_WRONLY)
    pid = os.posix_spawn(
        command[0],
        command,
        _environ(programs),
        file_actions=[
            (os.POSIX_SPAWN_DUP2, silent, 2),  # first: it may be 3 or 4 itself
            (os.POSIX_SPAWN_DUP2, theirs_in, 3),
            (os.POSIX_SPAWN_DUP2, theirs_out, 4),
        ],
        setpgroup=0,
    )
    for number in (theirs_in, theirs_out, silent):
        os.close(number)
    page = Page(ours_in, ours_out)
    try:
        yield page
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ours_out)
        page._reading.close()


def _pipe() -> tuple[int, int]:
    ends = []
    for number in os.pipe():
        ends.append(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, HIGH))
        os.close(number)
    return ends[0], ends[1]


def _binary(programs: Programs) -> str:
    # Debian's `chromium` is a script that looks for things in the system.
    if programs.root is not None:
        return str(programs.root / "usr/lib/chromium/chromium")
    return programs.find("chromium")


def _environ(programs: Programs) -> dict[str, str]:
    environ = programs.environ()
    if programs.root is not None:
        extra = [str(folder) for folder in programs.root.glob("usr/lib/*-linux-gnu*/pulseaudio")]
        environ["LD_LIBRARY_PATH"] = os.pathsep.join([environ["LD_LIBRARY_PATH"], *extra])
    return environ
