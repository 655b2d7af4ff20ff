"""A node as the connector asks it: HTTP that waits, for drivers and for tasks.

gRPC would take a tenth of a second to import in each of Spark's workers, and copy every frame once
more. Everything asked here can be asked again: what is read does not change. So a call waits up to
`PATIENCE_S` for a node that restarts or is busy, or whose connection is lost; then its error says
in one line which address does not answer, and what to do. Of several nodes one is asked, by chance
so that tasks spread over them, and after each failure the next. A secured node is asked by HTTPS,
with a token.
"""

import contextlib
import json
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from random import randrange
from threading import Event
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from waterclock.client.advice import advised
from waterclock.model import errors
from waterclock.model.errors import (
    NodeFailed,
    OffsetOutOfRange,
    Unavailable,
    UnknownTopic,
    Unreachable,
    WaterclockError,
)
from waterclock.security.credential import Credential
from waterclock.security.tls import client_context
from waterclock.spark.read.ranges import Extent

Taken = TypeVar("Taken")

PATIENCE_S = 30.0
"""How long a node may be away: enough for one that is started again."""
SILENCE_S_MAX = 90.0
"""How long nothing may come of an answer; longer than the longest wait that can be asked for."""
PAUSE_S, PAUSE_S_MAX = 0.05, 1.0
PROBLEM_BYTES_MAX = 64 << 10
_BUSY = (429, 502, 503, 504)


class Answer(NamedTuple):
    """The head of an answer, its body yet to be read."""

    response: HTTPResponse
    length: int

    def number(self, header: str) -> int:
        """Return a number from its headers, 0 if it is not among them."""
        return int(self.response.headers.get(header, 0))


class HttpNode:
    """One connection to a node, made when it is needed; not for several threads at once.

    The address may be of several nodes, with commas between them.
    """

    def __init__(
        self,
        address: str,
        *,
        credential: Credential | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._urls = deque(address.split(","))
        """The one that is asked is the last."""
        self._urls.rotate(randrange(len(self._urls)))
        self._patience_s = patience_s
        self._credential = credential
        self._headers = (
            {} if credential is None else {"Authorization": f"Bearer {credential.token}"}
        )
        self._closed = Event()
        self._turn()

    def __repr__(self) -> str:
        return f"<HttpNode at {self.address}>"

    def _turn(self) -> None:
        """Ask the next node from now on."""
        self._url = self._urls[0]
        self._urls.rotate(-1)
        parts = urlsplit(self._url)
        assert parts.hostname is not None
        self.address = f"{parts.hostname}:{parts.port}"
        self._connection = _connection(parts.hostname, parts.port, self._credential)

    def close(self) -> None:
        """Hang up. Where another thread may be asking, `cut` first and wait for it to end."""
        self._closed.set()
        self._connection.close()

    def cut(self) -> None:
        """Have what another thread asks fail at once, and everything from now on."""
        self._closed.set()
        line: socket.socket | None = self._connection.sock
        if line is not None:
            with contextlib.suppress(OSError):  # it is over already
                # Not TLS's own, which the thread that reads is in the middle of.
                socket.socket.shutdown(line, socket.SHUT_RDWR)

    def ask(self, path: str, take: Callable[[Answer], Taken]) -> Taken:
        """GET `path` and return what `take` made of the answer, asking again while the node is
        away. `take` may be called more than once."""
        gives_up_s: float | None = None
        pause_s = PAUSE_S
        while True:
            try:
                return self._once(path, take)
            except (OSError, HTTPException, Unavailable) as error:
                self._connection.close()
                now_s = time.monotonic()
                gives_up_s = now_s + self._patience_s if gives_up_s is None else gives_up_s
                if self._closed.is_set() or now_s + pause_s > gives_up_s:
                    raise self._away(error) from error
                if self._urls[0] != self._url:
                    self._turn()
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def ends(
        self,
        topic: str,
        known: dict[int, int] | None = None,
        *,
        wait_ms: int = 0,
        needed: frozenset[int] | None = None,
    ) -> dict[int, Extent]:
        """Return what each partition has; wait until one has more than is `known`, or is new.

        One that cannot be read counts as empty, unless it is `needed`; None: all are.
        """
        query = f"?waitMs={wait_ms}"
        if known:
            query += "&beyond=" + ",".join(f"{each}:{end}" for each, end in known.items())
        answer_json = self.ask(f"{path_of(topic)}/ends{query}", _document)
        found = {}
        for each in answer_json["partitions"]:
            partition = int(each["partition"])
            if each.get("problem") and (needed is None or partition in needed):
                raise NodeFailed(
                    f"partition {partition} of {topic!r} cannot be read: {each['problem']}. See "
                    f"the node's log; leave it out with the option partitions"
                )
            found[partition] = Extent(
                int(each["startOffset"]), int(each["endOffset"]), int(each.get("retainedOffset", 0))
            )
        return found

    def offsets_at(self, topic: str, time_ms: int) -> dict[int, int]:
        """Return the first offset of each partition that was appended at or after a time."""
        answer_json = self.ask(f"{path_of(topic)}/offsets?timeMs={time_ms}", _document)
        return {int(each["partition"]): int(each["offset"]) for each in answer_json["positions"]}

    def _once(self, path: str, take: Callable[[Answer], Taken]) -> Taken:
        connection = self._connection
        if connection.sock is None:
            self._connect()
        if self._closed.is_set():  # looked at once there is a line that `close` can cut
            raise ConnectionError("closed")
        connection.request("GET", path, headers=self._headers)
        response = connection.getresponse()
        if response.status != 200:
            raise problem_of(response, path, self.address)
        return take(Answer(response, int(response.headers["Content-Length"])))

    def _connect(self) -> None:
        try:
            self._connection.connect()
        except ssl.SSLError as error:
            from waterclock.client.errors import tls_failure  # which takes gRPC's time to load

            failure = tls_failure(f"https://{self.address}", str(error))
            if failure is not None and len(self._urls) > 1:
                self._urls.pop()  # it is no node for us
                raise ConnectionError(str(failure)) from error
            raise failure or error from error

    def _away(self, error: Exception) -> WaterclockError:
        if isinstance(error, Unavailable):
            return error
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Unreachable(
            f"no Waterclock node answers at http://{self.address} ({reason}). Start it, or see "
            f"that this machine can reach it; its address is what the node says of itself "
            f"(server.host, cluster.http_port)"
        )


def _connection(host: str, port: int | None, credential: Credential | None) -> HTTPConnection:
    if credential is None:
        return HTTPConnection(host, port, timeout=SILENCE_S_MAX)
    context = client_context(credential.ca_pem)
    return HTTPSConnection(host, port, timeout=SILENCE_S_MAX, context=context)


def path_of(topic: str) -> str:
    """Return where a topic is."""
    return f"/topics/{quote(topic, safe='')}"


def _document(answer: Answer) -> dict[str, Any]:
    answer_json: dict[str, Any] = json.loads(answer.response.read())
    return answer_json


def problem_of(response: HTTPResponse, path: str, address: str) -> WaterclockError:
    """Return the error that an answer means."""
    body = response.read(PROBLEM_BYTES_MAX)
    try:
        answer_json = json.loads(body)
    except ValueError:
        answer_json = {}
    answer_json = answer_json if isinstance(answer_json, dict) else {}
    detail = str(answer_json.get("detail") or f"answered {response.status} to {path}")
    kind = getattr(errors, str(answer_json.get("error")), None)
    if kind is UnknownTopic:
        return named(UnknownTopic, f"{detail} at {address}: create it first, or mind its name")
    if kind is OffsetOutOfRange:
        facts = {name: int(answer_json.get(name, 0)) for name in ("offset", "start", "end")}
        return OffsetOutOfRange(facts["offset"], start=facts["start"], end=facts["end"])
    if isinstance(kind, type) and issubclass(kind, WaterclockError):
        error = named(kind, detail)
        vars(error).update({name: answer_json.get(name) for name in ("right", "principal")})
        return advised(error)
    if response.status in _BUSY:
        return Unavailable(f"{address}: {detail}")
    return NodeFailed(f"{address}: {detail}")


def named(kind: type[WaterclockError], words: str) -> WaterclockError:
    """Return an error with these words, whatever its constructor takes."""
    error = kind.__new__(kind)
    Exception.__init__(error, words)
    return error
