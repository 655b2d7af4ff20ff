"""A session with Cassandra whose calls can be awaited: the driver's callbacks settle futures.

The driver has one thread for all sockets. It only hands results over to the loop; no call has a
thread of its own, except those that connect and close.

Ordinary statements are read and written by a quorum, so that what one node was told all others
read; conditional ones are decided by Paxos (serial).
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    RequestExecutionException,
    Unauthorized,
)
from cassandra.auth import AuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    ResponseFuture,
    Session,
)
from cassandra.connection import ConnectionException
from cassandra.policies import ConstantReconnectionPolicy, RoundRobinPolicy, TokenAwarePolicy
from cassandra.query import BatchStatement, BatchType, PreparedStatement, tuple_factory

from waterclock.model.errors import BadConfig, Closed, StoreUnavailable, WaterclockError
from waterclock.stores.tls import problem_of

T = TypeVar("T")

Row = tuple[Any, ...]

REQUEST_S_MAX = 15.0
CONNECT_S_MAX = 5.0
RECONNECT_S = 0.1
AWAY_S_MAX = 0.4
"""How long a call waits for a host when all are away: a little longer than reconnecting takes."""
ASK_S = 0.05
AT_ONCE_MAX = 128
"""Requests under way: more would time out while they wait in the server."""

NOT_OPENED_YET = "Unknown CF"

AWAY = (OperationTimedOut, RequestExecutionException, ConnectionException, OSError)


class CassandraSession:
    """A session, and the statements prepared in it by name."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        port: int,
        credentials: AuthProvider | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._hosts = list(hosts)
        self._port = port
        self._credentials = credentials
        self._tls = tls
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._statements: dict[str, PreparedStatement] = {}
        self._places = asyncio.Semaphore(AT_ONCE_MAX)

    async def connect(self) -> None:
        await self._on_thread(self._connect)

    async def define(self, statements: Iterable[str]) -> None:
        """Run statements that define keyspaces and tables, one after the other."""
        for statement in statements:
            await self._on_thread(partial(self._opened.execute, statement))

    async def prepare(self, statements: dict[str, str], *, serial: Container[str]) -> None:
        """Prepare statements, to be run by their names; some are serial reads."""

        def prepare() -> None:
            for name, text in statements.items():
                statement = self._opened.prepare(text)
                statement.fetch_size = None
                if name in serial:
                    statement.consistency_level = ConsistencyLevel.SERIAL
                self._statements[name] = statement

        clock = asyncio.get_running_loop().time
        deadline = clock() + REQUEST_S_MAX
        while True:
            try:
                return await self._on_thread(prepare)
            except StoreUnavailable as error:
                # A server tells of a table that another node creates before it can serve it.
                if NOT_OPENED_YET not in str(error) or clock() > deadline:
                    raise
            await asyncio.sleep(ASK_S)

    async def close(self) -> None:
        """Close the connections. Again is harmless."""
        cluster, self._cluster, self._session = self._cluster, None, None
        if cluster is not None:
            await asyncio.to_thread(cluster.shutdown)

    @property
    def hosts_count(self) -> int:
        """How many hosts the cluster has."""
        assert self._cluster is not None, "connect first"
        return len(self._cluster.metadata.all_hosts())

    async def run(self, name: str, *values: object) -> list[Row]:
        """Run a prepared statement; give its rows."""
        return await self._send(lambda: self._statements[name].bind(values))

    async def run_batch(self, name: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a prepared statement on many rows; those of one partition all or none."""

        def batch() -> BatchStatement:
            statement = BatchStatement(BatchType.UNLOGGED)
            for values in rows:
                statement.add(self._statements[name], values)
            return statement

        await self._send(batch)

    async def _send(self, statement: Callable[[], object]) -> list[Row]:
        clock = asyncio.get_running_loop().time
        deadline = clock() + AWAY_S_MAX
        async with self._places:
            while True:
                try:
                    return await self._request(statement())
                except NoHostAvailable as error:
                    if clock() > deadline or self._session is None:
                        raise _ours(error) from error
                except (Unauthorized, *AWAY) as error:
                    raise _ours(error) from error
                await asyncio.sleep(ASK_S)

    def _request(self, statement: object) -> Awaitable[list[Row]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Row]] = loop.create_future()

        def settle(rows: list[Row] | None, error: Exception | None) -> None:
            if answer.done():  # nobody waits any more
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(rows or [])

        def hand_over(rows: list[Row] | None, error: Exception | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, rows, error)

        response: ResponseFuture = self._opened.execute_async(statement)
        response.add_callbacks(
            lambda rows: hand_over(rows, None), lambda error: hand_over(None, error)
        )
        return answer

    @property
    def _opened(self) -> Session:
        if self._session is None:
            raise Closed("the store is not open")
        return self._session

    def _connect(self) -> None:
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
            consistency_level=ConsistencyLevel.QUORUM,
            serial_consistency_level=ConsistencyLevel.SERIAL,
            request_timeout=REQUEST_S_MAX,
            row_factory=tuple_factory,
        )
        self._cluster = Cluster(
            self._hosts,
            port=self._port,
            auth_provider=self._credentials,
            ssl_context=self._tls,
            protocol_version=4,
            connect_timeout=CONNECT_S_MAX,
            control_connection_timeout=CONNECT_S_MAX,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(RECONNECT_S, max_attempts=None),
            schema_metadata_enabled=False,
        )
        self._session = self._cluster.connect()

    async def _on_thread(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(call)
        except InvalidRequest:
            raise
        except (NoHostAvailable, DriverException, *AWAY) as error:
            raise _ours(error) from error


def _ours(error: Exception) -> WaterclockError:
    """Tell an account that may not do what it must from a server that is away."""
    causes = [error, *(error.errors.values() if isinstance(error, NoHostAvailable) else ())]
    if any(isinstance(cause, Unauthorized | AuthenticationFailed) for cause in causes):
        return BadConfig("streams.store", f"cassandra: {error}")
    return StoreUnavailable(f"cassandra: {problem_of(error)}")
