"""The members of an etcd cluster: a connection to each, and which of them is asked.

Any member answers for all. The first whose connection stands is asked, until it fails: it does not
answer in time, its connection breaks, or it has lost the others. Then it goes to the end of the
row, and the watches it serves are broken off so that they go on elsewhere: a member that is stopped
keeps its connections, and says nothing on them.

The token of a user ends when it was not used for a while, or when the password is changed; it is
fetched when it is first needed, and again when it is refused.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from waterclock.cluster.coordinator.errors import CoordinatorRefused, CoordinatorUnavailable
from waterclock.server.cluster.etcd.wire import AUTHENTICATE, Answer, Asked, Method
from waterclock.v1 import etcd_pb2 as pb

ANSWER_BYTES_MAX: Final = 64 << 20
"""Of one answer: a range, or all changes since a watch broke."""
RECONNECT_MS_MAX: Final = 1_000
_IS_AWAY = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """Where etcd is, and how it is talked to."""

    endpoints: tuple[str, ...]
    """`host:port` of each member, in the order they are tried."""
    user: str = ""
    password: str = ""
    ca_pem: bytes = b""
    """Who signed the members' certificates; with none, nothing is encrypted."""
    certificate_pem: bytes = b""
    """Ours, where etcd asks for one (client-cert-auth)."""
    key_pem: bytes = b""
    attempt_s: float = 2.0
    """How long one member may take. Less leaves a stopped one sooner, and a slow one too."""
    keepalive_ms: int = 6_000
    """Between pings on connections with calls. etcd hangs up on those who ping each 5 s or more
    often (grpc-keepalive-min-time)."""
    pause_s: float = 0.1
    """Before something is asked again, and before a watch that broke is begun again."""


class NotThere(CoordinatorRefused):
    """What the request names is not there: for what is asked here, a lease."""


class Member:
    """One member, and the calls that last."""

    def __init__(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.streams: set[Any] = set()

    def __repr__(self) -> str:
        return f"<Member {self.endpoint}, {self.channel.get_state().name.lower()}>"

    @property
    def is_ready(self) -> bool:
        """Whether the connection stands; if not, it is tried again."""
        state = self.channel.get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY


class Members:
    """All members, the one to ask first, first."""

    def __init__(self, settings: EtcdSettings) -> None:
        assert settings.endpoints, "a cluster has a member"
        self._settings = settings
        self._row = [Member(each, _channel(each, settings)) for each in settings.endpoints]
        self._token = ""

    def __repr__(self) -> str:
        return f"<Members {self._row}>"

    async def close(self) -> None:
        """Close all connections; what is under way fails."""
        for member in self._row:
            await member.channel.close()

    async def ask(
        self, method: Method[Asked, Answer], asked: Asked, *, is_repeatable: bool = True
    ) -> Answer:
        """Return the answer of the first member that gives one.

        While a leader is elected all of them refuse, so they are asked again for a while. What is
        not repeatable is sent to one member only: if that fails, it may have happened.
        """
        now_s = asyncio.get_running_loop().time
        give_up_s = now_s() + self._settings.attempt_s * len(self._row)
        while True:
            member = await self.ready()
            try:
                return await self._ask_with_token(member, method, asked)
            except CoordinatorUnavailable:
                if not is_repeatable or now_s() >= give_up_s:
                    raise
            await asyncio.sleep(self._settings.pause_s)

    async def _ask_with_token(
        self, member: Member, method: Method[Asked, Answer], asked: Asked
    ) -> Answer:
        for is_second in (False, True):
            token = await self._fetched_token(member)
            try:
                return await self._send(member, method, asked, token)
            except grpc.aio.AioRpcError as error:
                is_old = any(each in (error.details() or "") for each in _OLD_TOKEN)
                if is_second or not is_old:  # an old one is refused: nothing happened
                    raise self.translated(member, error) from error
                if token == self._token:  # else another call has fetched one
                    self._token = ""
        raise AssertionError("the second time answers or raises")

    async def _send(
        self, member: Member, method: Method[Asked, Answer], asked: Asked, token: str
    ) -> Answer:
        call = member.channel.unary_unary(method.path, **method.codec())
        answer: Answer = await call(
            asked, metadata=_metadata(token), timeout=self._settings.attempt_s
        )
        return answer

    @asynccontextmanager
    async def stream(
        self, method: Method[Asked, Answer]
    ) -> AsyncIterator[tuple[Member, "grpc.aio.StreamStreamCall[Asked, Answer]"]]:
        """Open a call that lasts, to the member that is asked now; it ends with the block."""
        member = await self.ready()
        token = await self._fetched_token(member)
        start = member.channel.stream_stream(method.path, **method.codec())
        call: grpc.aio.StreamStreamCall[Asked, Answer] = start(metadata=_metadata(token))
        member.streams.add(call)
        try:
            yield member, call
        except grpc.aio.AioRpcError as error:
            raise self.translated(member, error) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # gRPC says so too when the call was broken off by `failed`.
            raise CoordinatorUnavailable(f"etcd at {member.endpoint} was given up") from error
        finally:
            member.streams.discard(call)
            call.cancel()

    async def ready(self) -> Member:
        """Return the first member whose connection stands; wait for one if none does."""
        for member in self._row:
            if member.is_ready:
                return self._preferred(member)
        try:
            async with asyncio.timeout(self._settings.attempt_s):
                return self._preferred(await self._next_ready())
        except TimeoutError as error:
            where = ", ".join(self._settings.endpoints)
            raise CoordinatorUnavailable(f"etcd does not answer at {where}") from error

    def _preferred(self, member: Member) -> Member:
        # It stays with one, so that a call notices for all watches that it is stopped.
        self._row.remove(member)
        self._row.insert(0, member)
        return member

    async def _next_ready(self) -> Member:
        async with asyncio.TaskGroup() as tasks:
            waits = {tasks.create_task(each.channel.channel_ready()): each for each in self._row}
            done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in others:
                each.cancel()
        return waits[done.pop()]

    @property
    def first(self) -> str:
        """Who would be asked now."""
        return next((each for each in self._row if each.is_ready), self._row[0]).endpoint

    def failed(self, member: Member) -> None:
        """Ask another one from now on, and break off what this one serves."""
        self._row.remove(member)
        self._row.append(member)
        for call in list(member.streams):
            call.cancel()

    async def _fetched_token(self, member: Member) -> str:
        if self._settings.user and not self._token:
            asked = pb.AuthenticateRequest(
                name=self._settings.user, password=self._settings.password
            )
            try:
                answer = await self._send(member, AUTHENTICATE, asked, "")
            except grpc.aio.AioRpcError as error:
                raise self.translated(member, error) from error
            self._token = answer.token
        return self._token

    def translated(self, member: Member, error: grpc.aio.AioRpcError) -> Exception:
        """Return our error for one of gRPC; a member that is away is not asked next time."""
        if error.code() in _IS_AWAY:
            self.failed(member)
            return CoordinatorUnavailable(f"etcd at {member.endpoint}: {error.details()}")
        is_there = error.code() is not grpc.StatusCode.NOT_FOUND
        kind = CoordinatorRefused if is_there else NotThere
        return kind(f"etcd at {member.endpoint} refuses: {error.details()}")


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    # A member that has lost the others then says so, instead of keeping everybody waiting.
    has_leader = (("hasleader", "true"),)
    return (*has_leader, ("token", token)) if token else has_leader


def _channel(endpoint: str, settings: EtcdSettings) -> grpc.aio.Channel:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
        ("grpc.keepalive_time_ms", settings.keepalive_ms),
        ("grpc.keepalive_timeout_ms", int(settings.attempt_s * 1000)),
        ("grpc.http2.ping_timeout_ms", int(settings.attempt_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    if not settings.ca_pem:
        return grpc.aio.insecure_channel(endpoint, options=options)
    credentials = grpc.ssl_channel_credentials(
        settings.ca_pem, settings.key_pem or None, settings.certificate_pem or None
    )
    return grpc.aio.secure_channel(endpoint, credentials, options=options)
