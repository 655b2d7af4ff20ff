"""The gRPC channel of a client: in the open, or by TLS with a token on every call.

The token is metadata of each call, added where stubs get their methods: no call can be made without
it, and it costs 5 % of a call. gRPC's own call credentials cost 48 %: they ask a plugin, on another
thread, each time.

The node speaks nothing older than TLS 1.3. gRPC lets a client set no version of its own without
setting it for all others in the process.

Where there are several nodes, each has a channel, and each call goes by that of the node which is
current when it begins.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import grpc

from waterclock.client.target import Target
from waterclock.security.credential import Credential

Metadata = Sequence[tuple[str, str]]
Options = Sequence[tuple[str, int]]


def channel_of(target: Target, options: Options) -> grpc.aio.Channel:
    """Return a channel to a node, for tasks."""
    if target.credential is None:
        return grpc.aio.insecure_channel(target.address, options=options)
    channel = grpc.aio.secure_channel(target.address, _tls(target.credential), options=options)
    return cast(grpc.aio.Channel, AuthorizedChannel(channel, target.credential))


def blocking_channel_of(target: Target, options: Options = ()) -> grpc.Channel:
    """Return a channel to a node, for threads."""
    if target.credential is None:
        return grpc.insecure_channel(target.address, options=options)
    channel = grpc.secure_channel(target.address, _tls(target.credential), options=options)
    return cast(grpc.Channel, AuthorizedChannel(channel, target.credential))


class AuthorizedChannel:
    """A channel whose methods send a token with every call. Stubs are made from it."""

    def __init__(self, channel: grpc.Channel | grpc.aio.Channel, credential: Credential) -> None:
        self._channel: Any = channel
        self._metadata = (("authorization", f"Bearer {credential.token}"),)

    def __repr__(self) -> str:
        return "<AuthorizedChannel, token hidden>"

    def unary_unary(self, *given: object, **named: object) -> "AuthorizedMethod":
        return AuthorizedMethod(self._channel.unary_unary(*given, **named), self._metadata)

    def unary_stream(self, *given: object, **named: object) -> "AuthorizedMethod":
        return AuthorizedMethod(self._channel.unary_stream(*given, **named), self._metadata)

    def stream_unary(self, *given: object, **named: object) -> "AuthorizedMethod":
        return AuthorizedMethod(self._channel.stream_unary(*given, **named), self._metadata)

    def stream_stream(self, *given: object, **named: object) -> "AuthorizedMethod":
        return AuthorizedMethod(self._channel.stream_stream(*given, **named), self._metadata)

    def get_state(self) -> grpc.ChannelConnectivity:
        state: grpc.ChannelConnectivity = self._channel.get_state()
        return state

    def close(self) -> Any:  # noqa: ANN401  to be awaited, of the channel for tasks
        return self._channel.close()

    def __enter__(self) -> "AuthorizedChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AuthorizedMethod:
    """A method of a stub, with a token in the metadata of each call."""

    __slots__ = ("_metadata", "_method")

    def __init__(self, method: Any, metadata: Metadata) -> None:  # noqa: ANN401  of four kinds
        self._method = method
        self._metadata = metadata

    def __repr__(self) -> str:
        return "<AuthorizedMethod, token hidden>"

    def __call__(self, *given: object, metadata: Metadata | None = None, **named: object) -> object:
        return self._method(*given, metadata=(*self._metadata, *(metadata or ())), **named)


class CurrentChannel:
    """The channel of whichever node is current. Stubs are made from it."""

    def __init__(self, current: Callable[[], grpc.aio.Channel]) -> None:
        self._current = current

    def __repr__(self) -> str:
        return f"<CurrentChannel, now {self._current()!r}>"

    def unary_unary(self, *given: object, **named: object) -> "CurrentMethod":
        return CurrentMethod(self._current, "unary_unary", given, named)

    def unary_stream(self, *given: object, **named: object) -> "CurrentMethod":
        return CurrentMethod(self._current, "unary_stream", given, named)

    def stream_stream(self, *given: object, **named: object) -> "CurrentMethod":
        return CurrentMethod(self._current, "stream_stream", given, named)


class CurrentMethod:
    """A method of a stub, called at the node that is current."""

    __slots__ = ("_channel", "_current", "_given", "_kind", "_method", "_named")

    def __init__(
        self,
        current: Callable[[], grpc.aio.Channel],
        kind: str,
        given: tuple[object, ...],
        named: dict[str, object],
    ) -> None:
        self._current = current
        self._kind, self._given, self._named = kind, given, named
        self._channel: grpc.aio.Channel | None = None
        self._method: Any = None

    def __repr__(self) -> str:
        return f"<CurrentMethod {self._given[0]}>"

    def __call__(self, *given: object, **named: object) -> object:
        channel = self._current()
        if channel is not self._channel:
            self._method = getattr(channel, self._kind)(*self._given, **self._named)
            self._channel = channel
        return self._method(*given, **named)


def _tls(credential: Credential) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(root_certificates=credential.ca_pem)
