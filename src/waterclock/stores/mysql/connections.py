"""A few connections to MySQL or MariaDB, made when needed, and thrown away after any doubt.

A connection whose call failed or was cancelled may be in the middle of an answer or a transaction;
closing it is the one way out that is always right, for the server then rolls back. The server is
told to end sessions that are idle for long, so that a node that vanished cannot keep a stream
locked; therefore we do not use connections again that were idle for half as long.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncmy
from asyncmy import errors
from asyncmy.constants.CLIENT import MULTI_STATEMENTS

from waterclock.model.errors import BadConfig, Closed, StoreUnavailable
from waterclock.model.units import MIB
from waterclock.stores.tls import context_of, problem_of

logger = logging.getLogger(__name__)

FIELD = "streams.store"
CONNECTIONS_MAX = 8
CONNECT_S_MAX = 5
CALL_S_MAX = 30.0
IDLE_S_MAX = 30.0
PACKET_BYTES_MIN = 16 * MIB
"""What the server must take in one packet: a message of 10 MiB, and as much as we send at once."""

# Not as one `SET`: MySQL and MariaDB have different names for the variable of the isolation.
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    " SET SESSION wait_timeout = 60, SESSION innodb_lock_wait_timeout = 20,"
    " SESSION sql_mode = 'STRICT_ALL_TABLES'"
)
_DURABILITY = "SELECT @@innodb_flush_log_at_trx_commit, @@max_allowed_packet"
_REFUSED = {1044, 1045, 1049, 1142, 1143, 1227, 1698}
"""The account or the database does not exist, or may not be used."""

Rows = list[tuple[Any, ...]]


class Connection:
    """A connection of the driver, and when it was last used."""

    def __init__(self, driver: asyncmy.Connection, now_s: float) -> None:
        self._driver = driver
        self.used_s = now_s

    async def run(self, statements: str) -> list[Rows]:
        """Run statements, separated by semicolons; give the rows of each that has some."""
        results: list[Rows] = []
        # Not `async with`: after a failure that would wait for the rest of an answer, for ever.
        cursor = self._driver.cursor()
        await cursor.execute(statements)
        while True:
            if cursor.description:
                results.append(list(await cursor.fetchall()))
            if not await cursor.nextset():
                return results

    async def change(self, statement: str) -> int:
        """Run one statement and give how many rows it changed."""
        return int(await self._driver.cursor().execute(statement))

    def close(self) -> None:
        """End it at once. The driver would leave one of TLS open until the server has said goodbye
        too, and nobody would wait for that."""
        transport = getattr(self._driver, "_transport", None)
        if transport is not None:
            transport.abort()
        self._driver.close()


class Connections:
    """At most so many connections at once."""

    def __init__(self, url: str) -> None:
        self._settings = _settings(url)
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)
        self._is_open = False

    async def open(self) -> None:
        """Connect once, to see whether the server is as it has to be."""
        self._is_open = True
        async with self.one() as connection:
            [[(flush, packet)]] = await connection.run(_DURABILITY)
        if packet < PACKET_BYTES_MIN:
            needed = f"at least {PACKET_BYTES_MIN} (it is {packet})"
            raise BadConfig(FIELD, f"the server's max_allowed_packet must be {needed}")
        if flush != 1:
            problem = "innodb_flush_log_at_trx_commit is not 1: the server may lose what it stored"
            logger.warning("store_not_durable problem=%r", problem)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """Lend a connection for one call; errors about reaching the server leave as ours."""
        if not self._is_open:
            raise Closed("the store is not open")
        try:
            async with asyncio.timeout(CALL_S_MAX), self._free:
                connection = self._reusable() or await self._connect()
                try:
                    yield connection
                except BaseException:
                    connection.close()
                    raise
                connection.used_s = asyncio.get_running_loop().time()
                self._give_back(connection)
        except (errors.OperationalError, errors.InterfaceError) as error:
            if error.args and error.args[0] in _REFUSED:
                raise BadConfig(FIELD, f"mysql: {error}") from error
            raise StoreUnavailable(f"mysql: {problem_of(error)}") from error
        except (OSError, EOFError) as error:
            raise StoreUnavailable(f"mysql: {problem_of(error)}") from error

    def _reusable(self) -> Connection | None:
        oldest_s = asyncio.get_running_loop().time() - IDLE_S_MAX
        while self._idle:
            connection = self._idle.pop()
            if connection.used_s > oldest_s:
                return connection
            connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        if self._is_open:
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self) -> Connection:
        now_s = asyncio.get_running_loop().time()
        driver = await asyncmy.connect(
            **self._settings,
            autocommit=True,
            connect_timeout=CONNECT_S_MAX,
            client_flag=MULTI_STATEMENTS,
        )
        connection = Connection(driver, now_s)
        try:
            await connection.run(_SESSION)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Let go of all of them."""
        self._is_open = False
        while self._idle:
            self._idle.pop().close()


def _settings(url: str) -> dict[str, Any]:
    # What is wrong with a URL is not repeated: it may hold a password.
    form = "must be mysql://user:password@host:port/database"
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        raise BadConfig(FIELD, form) from None
    database = unquote(parts.path.lstrip("/"))
    if not parts.hostname or not database:
        raise BadConfig(FIELD, form)
    settings: dict[str, Any] = {
        "host": parts.hostname,
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
    }
    options = dict(parse_qsl(parts.query))
    for name, value in options.items():
        if name != "ssl_ca" and (name, value) != ("ssl", "true"):
            known = "there are ssl=true and ssl_ca=FILE"
            raise BadConfig(FIELD, f"mysql knows no option {name}={value}; {known}")
    if options:
        settings["ssl"] = context_of(options.get("ssl_ca"))
    return settings
