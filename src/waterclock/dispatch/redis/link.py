"""One connection to a Redis server: commands go out as they come, answers come back in order.

Why not redis-py here: its asyncio client makes a task switch and a dozen calls for every command, 5
to 6 thousand commands a second, and 13 to 25 thousand published messages a second. The dispatcher
needs several times that. So this is a bare `asyncio.Protocol` around hiredis, which parses and
packs in C: `call` writes and returns a future, as many as you like before the first is answered.

A link is used once. When it breaks, all callers that wait get `RedisAway`, and whether their
commands were run is not known; `client.py` makes a new one. A server that does not answer for
`silence_s_max` counts as gone, for a cut cable tells nobody.
"""

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from waterclock.model.errors import BadInput, Unavailable, WaterclockError
from waterclock.model.extras import need
from waterclock.runtime.link import Link

try:
    import hiredis
except ModuleNotFoundError:
    need("hiredis", "redis")
    raise

Word = bytes | str | int
Reply = Any
"""What Redis answers: bytes, int, None, a list of these, or a `RedisRefused` inside a list."""

PORT = 6379
SILENCE_S_MAX = 5.0
_NOTHING = object()
# hiredis says a tuple of one; it takes any number.
_pack = cast(Callable[[tuple[Word, ...]], bytes], hiredis.pack_command)


class RedisAway(Unavailable):
    """The server cannot be reached, or went away before it answered: the command may have run."""


class RedisRefused(WaterclockError):
    """The server answered with an error; the command changed nothing."""

    @property
    def kind(self) -> str:
        """The first word, by which errors are told apart: NOSCRIPT, MOVED, STALE, ..."""
        return str(self).partition(" ")[0]


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where a server is, and how to be let in."""

    host: str
    port: int = PORT
    username: str = ""
    password: str = ""
    database: int = 0
    is_tls: bool = False

    @classmethod
    def parse(cls, text: str) -> "RedisAddress":
        """Read `host:port` or `redis[s]://[user[:password]@]host[:port][/database]`."""
        try:
            parts = urlsplit(text if "://" in text else f"redis://{text}")
            port, database = parts.port or PORT, int(parts.path.strip("/") or 0)
        except ValueError:
            # Not chained: what could not be read may be a part of a password.
            raise _no_address(text) from None
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or database < 0:
            raise _no_address(text)
        if parts.query or parts.fragment:  # `?db=2` that nobody reads would be the wrong database
            raise _no_address(text)
        # `redis://:secret@host` and `redis://user:secret@host`; both parts may be quoted.
        return cls(
            parts.hostname, port, unquote(parts.username or ""), unquote(parts.password or ""),
            database, parts.scheme == "rediss",
        )  # fmt: skip

    def at(self, host: str, port: int) -> "RedisAddress":
        """Return another server that lets us in the same way: another node of a cluster."""
        return RedisAddress(host, port, self.username, self.password, self.database, self.is_tls)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def without_password(text: str) -> str:
    """Return an address as it may be shown: all that lets us in is left out."""
    scheme, separator, rest = text.rpartition("://")
    _, at, where = rest.rpartition("@")
    return f"{scheme}{separator}{'***' + at if at else ''}{where}"


def _no_address(text: str) -> BadInput:
    return BadInput(
        f"{without_password(text)!r} is no address of a Redis server: write host:port or "
        "redis[s]://[user[:password]@]host[:port][/database], with special characters of a "
        "password as %XX"
    )


class RedisLink(Link):
    """A connection that is open, or was. Make one with `connect`."""

    def __init__(self, address: RedisAddress, *, silence_s_max: float = SILENCE_S_MAX) -> None:
        super().__init__()
        self.address = address
        self._reader = hiredis.Reader(replyError=RedisRefused, notEnoughData=_NOTHING)
        self._waiting: deque[asyncio.Future[Reply]] = deque()
        self._on_replies: Callable[[list[Reply]], None] | None = None
        self._unconfirmed = 0
        self.silence_s_max = silence_s_max
        self._looked_at = self.heard_at
        self._watch: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done once the connection is gone, by whomever it was closed."""

    def __repr__(self) -> str:
        state = "closed" if self.closed.done() else f"{len(self._waiting)} unanswered"
        return f"<RedisLink to {self.address}, {state}>"

    def call(self, *args: Word) -> "asyncio.Future[Reply]":
        """Send a command now; the future has its answer. It fails with `RedisRefused`, or with
        `RedisAway` if the connection breaks first."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(RedisAway(f"the connection to Redis at {self.address} is closed"))
            return future
        packed = _pack(args)  # before the future is queued: it may refuse, and nothing was sent
        if not self._waiting:
            self.heard_at = self._loop.time()  # it owed us nothing until now
        self._waiting.append(future)
        self._transport.write(packed)
        return future

    async def subscribe(self, *channels: str, on_replies: Callable[[list[Reply]], None]) -> None:
        """Hand everything that comes from now on to the function, as lists in the order of arrival:
        the connection serves subscriptions only. Returns when all channels are confirmed. Nothing
        may be unanswered."""
        assert not self._waiting
        if self._transport is None or self._transport.is_closing():
            raise RedisAway(f"the connection to Redis at {self.address} is closed")
        self._on_replies = on_replies
        self.heard_at = self._loop.time()
        self._unconfirmed = len(channels)
        confirmed: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting.append(confirmed)
        self._transport.write(_pack(("SUBSCRIBE", *channels)))
        await confirmed

    def close(self) -> None:
        """Close at once; callers that still wait get `RedisAway`."""
        self.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._watch = self._loop.call_later(self.silence_s_max / 4, self._look)

    def data_received(self, data: bytes) -> None:
        """Hand each answer to the call it belongs to."""
        self.heard_at = self._loop.time()
        reader, waiting = self._reader, self._waiting
        try:
            reader.feed(data)
            if self._on_replies is not None:
                self._push()
                return
            while (reply := reader.gets()) is not _NOTHING:
                self._answer(waiting.popleft(), reply)
        except (hiredis.ProtocolError, IndexError):  # the other side does not speak Redis
            self.close()

    def _push(self) -> None:
        replies = []
        while (reply := self._reader.gets()) is not _NOTHING:
            replies.append(reply)
        refused = next((reply for reply in replies if isinstance(reply, RedisRefused)), None)
        if refused is not None:
            # It does not let us subscribe, or does not go on: who asked hears why, others that the
            # connection is gone.
            if self._waiting:
                self._answer(self._waiting.popleft(), refused)
            self.close()
            return
        if self._unconfirmed:
            self._unconfirmed -= sum(reply[0] == b"subscribe" for reply in replies)
            if self._unconfirmed <= 0 and self._waiting:
                self._answer(self._waiting.popleft(), None)
        if replies and self._on_replies is not None:
            self._on_replies(replies)

    @staticmethod
    def _answer(future: "asyncio.Future[Reply]", reply: Reply) -> None:
        if future.done():  # the caller does not wait any more
            return
        if isinstance(reply, RedisRefused):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all calls that wait."""
        if self._watch is not None:
            self._watch.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(
                    RedisAway(f"Redis at {self.address} went away: {exc or 'eof'}")
                )

    def _look(self) -> None:
        """Give up a server that owes an answer for too long."""
        owes = bool(self._waiting) or self._on_replies is not None
        now, look_s = self._loop.time(), self.silence_s_max / 4
        if now - self._looked_at > 2 * look_s:
            # It was us who slept; what it sent meanwhile is about to be read.
            self.heard_at = now
        self._looked_at = now
        silent_s = now - self.heard_at
        if owes and silent_s > self.silence_s_max:
            self.close()
            return
        if self._on_replies is not None and silent_s > self.silence_s_max / 3:
            assert self._transport is not None
            self._transport.write(_pack(("PING",)))
        self._watch = self._loop.call_later(look_s, self._look)


async def connect(
    address: RedisAddress,
    *,
    silence_s_max: float = SILENCE_S_MAX,
    tls: ssl.SSLContext | None = None,
) -> RedisLink:
    """Open a connection that is let in and stands at its database. An address of `rediss://` is
    checked against the certificates of the system, unless there is a context."""
    loop = asyncio.get_running_loop()
    security = tls or ssl.create_default_context() if address.is_tls else None
    try:
        async with asyncio.timeout(silence_s_max):
            _, link = await loop.create_connection(
                lambda: RedisLink(address, silence_s_max=silence_s_max),
                address.host, address.port, ssl=security,
            )  # fmt: skip
    except (OSError, TimeoutError) as error:
        raise RedisAway(f"Redis at {address} does not answer: {_reason(error)}") from error
    greetings = []
    if address.password or address.username:
        names = [address.username] if address.username else []
        greetings.append(link.call("AUTH", *names, address.password))
    if address.database:
        greetings.append(link.call("SELECT", address.database))
    try:
        for greeting in greetings:
            await greeting
    except BaseException:
        link.close()
        raise
    return link


def _reason(error: OSError | TimeoutError) -> str:
    """Return why no connection was made, in the system's words and not in Python's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):  # its numbers are not the system's
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0).lower()
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)
