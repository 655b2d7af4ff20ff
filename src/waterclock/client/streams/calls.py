"""Requests about streams: over HTTP, and again where that is no repeat.

What the node refused to begin, or never got, is asked again until its time is over. What may have
happened is asked again only if a repeat changes nothing: a look, a read from a position, a message
that is stored under its id.

Any node of a cluster answers for any stream. So if one does not, another is asked, of those that
the nodes name; their HTTP has a current node of its own, for it may fail while gRPC does not.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from ipaddress import ip_address
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

import msgspec

from waterclock.client.calls import Calls, Http, others_of
from waterclock.client.due import span_ms
from waterclock.client.errors import UnusableAddress, error_of_answer
from waterclock.client.nodes import Nodes
from waterclock.client.retry import is_for_another, is_transient, was_never_sent, was_refused
from waterclock.client.streams.http_request import PORTS, HttpRequest, request_head
from waterclock.client.streams.results import decoded
from waterclock.client.target import is_own_host
from waterclock.model.errors import (
    BadInput,
    Closed,
    MatchTimeout,
    NodeFailed,
    Stopping,
    Unreachable,
    WaterclockError,
)
from waterclock.model.units import SECOND_MS
from waterclock.model.views import NodeInfo
from waterclock.runtime.tracing import messaging

_log = logging.getLogger("waterclock.client")

Wait = timedelta | str | float
"""A length of time: a timedelta, text such as "30s", or seconds."""
Made = Callable[[int | None], HttpRequest]
"""Makes a request that lets the node wait for so many milliseconds; None: as long as it likes."""

DEFAULT_WAIT_MS = 30 * SECOND_MS
"""How long a node lets a receiver wait that gives no timeout, by default."""


class StreamCalls:
    """Asks a node. Let it `meet` one before use, close it after."""

    def __init__(self, connection: Calls, http_address: str | None) -> None:
        self.connection = connection
        credential = connection.target.credential
        self._scheme = "http" if credential is None else "https"
        self._is_given = http_address is not None
        http_address = http_address or connection.target.http_address
        self._given = [] if http_address is None else _urls(http_address, self._scheme)
        for url in self._given:
            request_head(url, credential)  # a mistake is raised at once
        self._nodes: Nodes | None = None
        self._pools: dict[str, Http] = {}

    def __repr__(self) -> str:
        return f"<StreamCalls by {[*self._pools.values()]}>"

    def meet(self, node: NodeInfo) -> None:
        """Know where a node, and those beside it, have HTTP. Nothing is asked before it must."""
        address = self.connection.address
        own = [reachable(node.http_address, address, self._scheme)] if node.http_address else []
        if self._nodes is None and (self._given or own):
            self._nodes = Nodes(self._given or own, self.connection.rng)
        if self._nodes is not None and not self._is_given:
            others = others_of(node, address)
            named = [each for each in node.nodes if each.address in others]
            urls = [reachable(each.http_address, each.address, self._scheme) for each in named]
            self._nodes.learn([*own, *urls])

    def close(self) -> None:
        """Hang up. Calls in flight fail."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    @property
    def pool(self) -> Http:
        """The connections to the current node, made when first used."""
        url = self._url
        if url not in self._pools:
            self._pools[url] = self.connection.http(url)
        return self._pools[url]

    @property
    def _url(self) -> str:
        self.connection.check_open()
        if self._nodes is None:
            raise Unreachable(
                f"the node at {self.connection.address} does not say where it listens for HTTP: "
                "name it with connect(http_address=...)"
            )
        return self._nodes.current

    async def call(
        self,
        made: Made,
        *,
        wait_ms: int | None = 0,
        is_safe: bool = False,
        retry_ms: int | None = None,
    ) -> dict[str, Any]:
        """Make a request; return its answer, or raise our error.

        `is_safe`: repeating it changes nothing. `retry_ms` is how long to try, beside the wait.
        """
        if self.connection.keys is not None:
            raise BadInput("streams are not encrypted: use a client without keys for them")
        clock, settings = self.connection.clock, self.connection.settings
        backoff = self.connection.backoff()
        began_ms = clock.monotonic_ms()
        most_ms = DEFAULT_WAIT_MS if wait_ms is None else wait_ms
        ends_ms = began_ms + most_ms + (retry_ms or settings.call_timeout_ms)
        while True:
            now_ms = clock.monotonic_ms()
            left_ms = max(0, most_ms - (now_ms - began_ms))
            timeout_ms = min(left_ms + settings.call_timeout_ms, max(ends_ms - now_ms, 1))
            url = self._url
            try:
                request = made(None if wait_ms is None else left_ms)
                if self.connection.tracer is not None:
                    request = request._replace(headers=self.connection.tracer.metadata())
                return await self._once(request, timeout_ms)
            except WaterclockError as error:
                pause_ms = backoff.next_ms(error)
                is_left = self._failed(url, error, backoff.failures)
                is_over = clock.monotonic_ms() + pause_ms >= ends_ms
                if is_over or not _may_repeat(error, is_safe=is_safe, is_left=is_left):
                    raise
            await self.connection.pause(pause_ms)

    async def _once(self, request: HttpRequest, timeout_ms: int) -> dict[str, Any]:
        pool = self.pool
        answer = await pool.ask(request, timeout_s=timeout_ms / 1_000)
        if answer.status == 204:
            return {}
        if not 200 <= answer.status < 300:
            raise error_of_answer(answer.status, answer.body, pool.url)
        return decoded(answer.body, pool.url)

    def _failed(self, url: str, error: WaterclockError, failures: int) -> bool:
        """Note that a node failed at something; return whether another is asked from now on."""
        nodes = self._nodes
        assert nodes is not None
        if isinstance(error, MatchTimeout | Closed) or not is_for_another(error, failures):
            return False
        if isinstance(error, Stopping) and failures % 2:
            return False  # of its stream, perhaps, which is on its way: all would say so
        if isinstance(error, UnusableAddress):
            return nodes.drop(url)
        other = nodes.leave(url)
        if other is not None:
            _log.warning("streams go on at %s: %s failed (%s)", other, url, error)
        return other is not None

    def sending(self, stream: str) -> AbstractContextManager[object]:
        """Return the span in which a message is sent; nothing if the program makes none."""
        tracer = self.connection.tracer
        if tracer is None:
            return nullcontext()
        attributes = messaging("send", stream)
        return tracer.inside(tracer.begin(f"send {stream}", "PRODUCER", attributes=attributes))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise NodeFailed where an answer lacks a field that every node sends."""
        try:
            yield
        except (KeyError, TypeError, IndexError, msgspec.ValidationError) as error:
            raise NodeFailed(f"an answer about streams lacks something: {error!r}") from error


def _may_repeat(error: WaterclockError, *, is_safe: bool, is_left: bool) -> bool:
    if isinstance(error, MatchTimeout | Closed):
        return False
    if isinstance(error, UnusableAddress):
        return is_left
    return was_refused(error) or was_never_sent(error) or (is_safe and is_transient(error))


def wait_ms_of(field: str, wait: Wait) -> int:
    """Return a length of time in milliseconds, rounded up; raise BadInput that names the field."""
    if isinstance(wait, int | float) and not isinstance(wait, bool):
        if not isfinite(wait) or wait < 0:
            raise BadInput(f"{field}: {wait} is not a number of seconds")
        wait = timedelta(seconds=wait)
    if not isinstance(wait, timedelta | str):
        raise BadInput(f"{field} must be a length of time, such as '30s', not {wait!r}")
    try:
        found = span_ms(wait)
    except BadInput as error:
        raise BadInput(f"{field}: {error}") from None
    if found < 0:
        raise BadInput(f"{field}: {wait} is less than nothing")
    return found


def reachable(http_address: str, grpc_address: str, scheme: str = "http") -> str:
    """Return where to find what a node calls its HTTP address.

    A node that listens everywhere, or only on its own machine, cannot tell how we get there; but
    we do, for gRPC.
    """
    # A node that is asked by TLS is reached by TLS, whatever it calls itself.
    url = f"{scheme}://{http_address.rpartition('://')[2]}"
    parts = urlsplit(url)
    host = grpc_address.rpartition(":")[0]
    named = parts.hostname or ""
    if _is_any(named) or (is_own_host(named) and not is_own_host(host.strip("[]"))):
        return f"{scheme}://{host}:{parts.port or PORTS[scheme]}"
    return url


def _urls(addresses: str, scheme: str) -> list[str]:
    named = [each.strip() for each in addresses.split(",")]
    return [each if "://" in each else f"{scheme}://{each}" for each in named]


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
