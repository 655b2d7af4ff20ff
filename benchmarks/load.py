"""A list of HTTP requests, played over and over on many connections: by `wrk`, the same for all.

`wrk` is written in C, so it leaves a core to the server and is not what is measured. The next
request of the list goes out on whichever connection is free; so after a send to a stream the
receive from it may come on another connection, even a moment earlier, and is answered by it.
"""

import json
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.client import Stopwatch
from benchmarks.harness import is_smoke
from benchmarks.peers.cache import debian
from benchmarks.peers.wire import connect

BODY_BYTES = 128
BODY = b'{"text":"%b"}' % (b"x" * (BODY_BYTES - 11))
"""A message: JSON, as large as those of the other benchmarks."""
CONNECTIONS = 64
"""Of one client."""
WINDOW = 256
"""Requests unanswered at a time on one connection, where we prepare something."""
MARK = "RESULT "
SCRIPT = """
local requests, count, at = {}, 0, 0
local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  local file = assert(io.open(args[1], "rb"))
  for request in file:read("*a"):gmatch("[^%z]+") do
    count = count + 1
    requests[count] = request
  end
  file:close()
  -- Of several threads, each has a part of the list to itself.
  local all, part = requests, count / tonumber(args[2])
  requests, count = {}, part
  for i = 1, part do
    requests[i] = all[number * part + i]
  end
  -- wrk asks the first thread for one request to look at it: the last, so that the first is the
  -- first.
  at = number == 0 and count - 1 or 0
end

function request()
  at = at % count + 1
  return requests[at]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "us": %d, "bad": %d, "lost": %d, "p50_us": %d, "p99_us": %d}\\n',
    summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


def play(
    watch: Stopwatch,
    port: int,
    requests: Sequence[bytes],
    *,
    seconds: int,
    is_apart: bool = False,
) -> None:
    """Play requests for so long; tell how many were answered. With `is_apart`, each connection has
    a part of the list to itself."""
    if is_smoke():
        # It would have to be fetched from the network.
        _play_once(watch, port, requests)
        return
    its = debian("wrk", ["wrk"])
    with tempfile.TemporaryDirectory() as name:
        script, listed = Path(name) / "play.lua", Path(name) / "requests"
        script.write_text(SCRIPT)
        listed.write_bytes(b"\0".join(requests))
        threads = CONNECTIONS if is_apart else 1
        assert len(requests) % threads == 0
        command = [its.find("wrk"), f"-t{threads}", f"-c{CONNECTIONS}", f"-d{seconds}s"]
        command += ["-s", str(script), f"http://127.0.0.1:{port}", "--", str(listed), str(threads)]
        with watch.running(0):
            run = subprocess.run(
                command, env=its.environ(), stdout=subprocess.PIPE, text=True, check=True
            )
    marked = next(line for line in run.stdout.splitlines() if line.startswith(MARK))
    found = json.loads(marked.removeprefix(MARK))
    if found["bad"] or found["lost"] or not found["requests"]:
        raise RuntimeError(f"requests failed: {run.stdout}")
    # Its own clock starts when it is connected.
    watch.messages, watch.wall_s = found["requests"], found["us"] / 1e6
    watch.more |= found


def _play_once(watch: Stopwatch, port: int, requests: Sequence[bytes]) -> None:
    """Play all requests once, on two connections in turn: one may wait for the other."""
    with connect(port) as one, connect(port) as other, watch.running(len(requests)):
        for wire, part in ((one, requests[::2]), (other, requests[1::2])):
            wire.sendall(b"".join(part))
        _expect(one, len(requests[::2]))
        _expect(other, len(requests[1::2]))


def send_all(port: int, requests: Sequence[bytes]) -> None:
    """Send each request once, pipelined on one connection; fail if one is not answered with 2xx."""
    with connect(port) as wire:
        for at in range(0, len(requests), WINDOW):
            part = requests[at : at + WINDOW]
            wire.sendall(b"".join(part))
            _expect(wire, len(part))


def _expect(wire: socket.socket, answers: int) -> None:
    data = b""
    while answers:
        data += wire.recv(1 << 18)
        while (size := answer_bytes(data)) is not None:
            if not data.startswith(b"HTTP/1.1 2"):
                raise RuntimeError(f"a request failed: {data[:size]!r}")
            data = data[size:]
            answers -= 1


def answer_bytes(data: bytes | bytearray) -> int | None:
    """Give the size of the answer that data begins with; None if more of it is to come."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    at = data.find(b"\nContent-Length: ", 0, end)
    size = end + 4 + (int(data[at + 17 : data.index(b"\r", at)]) if at >= 0 else 0)
    return size if len(data) >= size else None


def names(kind: str, count: int) -> list[str]:
    """Give names of streams."""
    return [f"{kind}-{number}" for number in range(count)]


def post(path: str, body: bytes) -> bytes:
    """Encode a request with a body of JSON."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def get(path: str, headers: bytes = b"") -> bytes:
    """Encode a request without a body."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + headers + b"\r\n"
