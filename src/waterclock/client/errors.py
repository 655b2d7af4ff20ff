"""Statuses into errors: what came over the wire becomes the exception the node raised.

The node names the class of its error in the trailing metadata (`waterclock-error`), and its facts
beside it (`waterclock-field`, `waterclock-limit`), so `except LimitExceeded` works here as it does
there. What has no name was not said by a node: the connection, a deadline or something else on the
way. Over HTTP the same is a problem (RFC 9457), in JSON.
"""

import json
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

from waterclock.client.advice import GIVE_CREDENTIAL, advised
from waterclock.model import errors as tree
from waterclock.model.errors import (
    BadInput,
    Busy,
    Forbidden,
    Gone,
    LimitExceeded,
    MatchTimeout,
    NodeFailed,
    NotAuthenticated,
    NotFound,
    NotSupported,
    Overloaded,
    Stopping,
    StorageFull,
    TimedOut,
    Unavailable,
    Unreachable,
    WaterclockError,
)

if TYPE_CHECKING:
    import grpc

    from waterclock.v1 import broker_pb2


class StatusCode(IntEnum):
    """How gRPC numbers what came of a call; its library, which has them too, is slow to load."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @classmethod
    def _missing_(cls, value: object) -> "StatusCode":
        """Take a number that nobody knows for UNKNOWN, as gRPC has it."""
        return cls.UNKNOWN


class NotConnected(Unreachable):
    """No connection could be made, so nothing was sent."""


class UnusableAddress(BadInput):
    """What answers at the address is no node for us, and never will be: nothing was sent."""


_PREFIX = "waterclock-"

_NAMED: dict[str, type[WaterclockError]] = {
    name: found
    for name, found in vars(tree).items()
    if isinstance(found, type) and issubclass(found, WaterclockError)
}
_BROKEN_STREAM = ("rst_stream", "stream removed", "goaway", "connection", "error from core")
"""How gRPC words a connection that broke in the middle of a call, under several codes. The last is
what a write to it hears."""
_NOT_GRPC = "failed parsing http/2"
"""How gRPC words that something listens there which speaks another protocol."""
_SPEAKS_HTTP1 = "http1.x server"
_NO_TLS = "wrong version number"
_OTHER_CA = "certificate verify failed"
_OTHER_NAME = ("hostname verification", "hostname mismatch", "ip address mismatch")
_NO_ALPN = "missing selected alpn"
"""How gRPC and OpenSSL word that TLS came to nothing: it is not spoken there, the certificate is
not of the credential's CA or not for the name, or HTTP is spoken and not gRPC."""
_NUMBERS = {"end", "got", "limit", "offset", "retry_after_ms", "start"}
_TEXTS = {"field", "leader", "name", "principal", "problem", "resource", "right", "what"}
"""Facts that errors carry. What the node did not tell is None."""
_TOO_LARGE = "larger than max"
_STATUSES: dict[int, type[WaterclockError]] = {
    400: BadInput,
    401: NotAuthenticated,
    403: Forbidden,
    404: NotFound,
    408: TimedOut,
    409: Busy,
    410: Gone,
    413: LimitExceeded,
    424: Stopping,  # another node has the stream, or will
    429: Overloaded,
    501: NotSupported,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: StorageFull,
}
"""Over HTTP, what has no name of ours."""
_DETAIL_CHARS = 200
_NEVER_SENT = ("failed to connect", "resolution failed")
"""How gRPC words that there is no connection, so that a call was not even begun."""


def error_of(rpc: "grpc.aio.AioRpcError", address: str) -> WaterclockError:
    """Return the error that a failed call means."""
    code: int = rpc.code().value[0]
    return error_of_status(code, rpc.details() or "", _texts(rpc.trailing_metadata()), address)


def error_of_status(
    code: int, details: str, metadata: dict[str, str], address: str
) -> WaterclockError:
    """Return the error that a status and its trailing metadata mean."""
    status = StatusCode(code)
    details = details or status.name
    named = _NAMED.get(metadata.get(f"{_PREFIX}error", ""))
    if named is not None:
        return _rebuilt(named, details, metadata)
    return _unnamed(status, details, address)


def error_of_problem(problem: "broker_pb2.Problem", address: str) -> WaterclockError:
    """Return the error that the problem with one batch of a stream means."""
    named = _NAMED.get(problem.error)
    if named is not None:
        facts = {f"{_PREFIX}field": problem.field, f"{_PREFIX}limit": str(problem.limit)}
        return _rebuilt(named, problem.message, facts)
    return _unnamed(StatusCode(problem.code), problem.message, address)


def error_of_answer(status: int, body: bytes, address: str) -> WaterclockError:
    """Return the error that an HTTP answer means; of a problem, with its facts."""
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    named = _NAMED.get(str(problem.get("error"))) or _STATUSES.get(status)
    details = str(problem.get("detail") or body[:_DETAIL_CHARS].decode(errors="replace"))
    if named is None or named is WaterclockError:
        return NodeFailed(f"{address} answered {status}: {details}")
    facts = {f"{_PREFIX}{name}": str(value) for name, value in problem.items()}
    error = _rebuilt(named, details or f"{address} answered {status}", facts)
    if isinstance(error, Gone | MatchTimeout):
        error.resume_token = str(problem.get("resumeToken") or "")
    if isinstance(error, Gone):
        missed = problem.get("missed")
        error.missed = missed if isinstance(missed, int) else 0
    return error


def unreachable(address: str, details: str) -> Unreachable:
    """Return the error of a node that does not answer; it says what to do."""
    # gRPC puts the system's own words last, behind two lines of its own.
    was_sent = not any(words in details.lower() for words in _NEVER_SENT)
    details = details.rsplit(": ", 1)[-1] if "failed to connect" in details else details
    error = (Unreachable if was_sent else NotConnected)(
        f"no Waterclock node answers at {address} ({details}). Start one with `waterclock up`, or "
        f"name another address: connect('host:port') or WATERCLOCK_ADDRESS"
    )
    is_lost = "stream removed" in details.lower() or "reset by peer" in details.lower()
    error.reason = "the connection was lost" if is_lost else details.lower()
    return error


def not_grpc(address: str, details: str) -> UnusableAddress:
    """Return the error of an address at which something else answers; it says what to type."""
    host = address.rpartition(":")[0]
    if _SPEAKS_HTTP1 in details.lower():
        return UnusableAddress(
            f"{address} speaks HTTP, and clients need gRPC: a node listens for it at another port, "
            f"9000 by default. Type {host}:9000 (`waterclock up` prints both ports)"
        )
    return UnusableAddress(
        f"{address} does not speak gRPC: something else than a Waterclock node listens there. "
        f"Type the node's port for gRPC, 9000 by default, as in {host}:9000"
    )


def needs_tls(address: str) -> NotAuthenticated:
    """Return the error of a client in the open at a node that speaks TLS only."""
    return NotAuthenticated(f"the node at {address} is secured, it speaks TLS: {GIVE_CREDENTIAL}")


def tls_failure(address: str, details: str) -> UnusableAddress | None:
    """Return the error of TLS that came to nothing, by how gRPC or Python words it."""
    words = details.lower().replace("_", " ")
    host = address.rpartition(":")[0].rpartition("//")[2].strip("[]")
    if _NO_TLS in words:
        return UnusableAddress(
            f"{address} does not speak TLS, and a credential is only sent by TLS: connect without "
            "one (WATERCLOCK_CREDENTIAL counts), or secure the node with `waterclock secure init`"
        )
    if any(name in words for name in _OTHER_NAME):
        return UnusableAddress(
            f"the certificate of the node at {address} is not for {host}: connect by a name that "
            f"it has, or add this one with `waterclock secure rotate --host {host}`"
        )
    if _OTHER_CA in words:
        return UnusableAddress(
            f"the node at {address} is not the one that the credential is for: its certificate is "
            "of another CA. Use a credential that `waterclock secure add` printed there"
        )
    return not_grpc(address, _SPEAKS_HTTP1) if _NO_ALPN in words else None


def _rebuilt(
    named: type[WaterclockError], details: str, metadata: dict[str, str]
) -> WaterclockError:
    """Make the error without its constructor: the node has put the words together already."""
    error = named.__new__(named)
    Exception.__init__(error, details)
    facts: dict[str, object] = dict.fromkeys(_NUMBERS | _TEXTS)
    for name, text in metadata.items():
        fact = name.removeprefix(_PREFIX)
        if fact in _TEXTS:
            facts[fact] = text
        elif fact in _NUMBERS and text.removeprefix("-").isdecimal():
            facts[fact] = int(text)
    vars(error).update(facts)
    return advised(error)


def _unnamed(code: StatusCode, details: str, address: str) -> WaterclockError:
    is_broken = any(words in details.lower() for words in _BROKEN_STREAM)
    if _NOT_GRPC in details.lower():
        return not_grpc(address, details)
    if (failure := tls_failure(address, details)) is not None:
        return failure
    match code:
        case StatusCode.UNAVAILABLE | StatusCode.CANCELLED | StatusCode.ABORTED:
            return unreachable(address, details)
        case StatusCode.INTERNAL | StatusCode.UNKNOWN if is_broken:
            return unreachable(address, details)
        case StatusCode.DEADLINE_EXCEEDED:
            return TimedOut(f"{address} did not answer in time: {details}")
        case StatusCode.RESOURCE_EXHAUSTED if _TOO_LARGE in details.lower():
            return LimitExceeded("request bytes", 0)
        case StatusCode.RESOURCE_EXHAUSTED:
            return Unavailable(details)
        case StatusCode.INVALID_ARGUMENT | StatusCode.OUT_OF_RANGE:
            return BadInput(details)
        case StatusCode.UNAUTHENTICATED:
            return advised(NotAuthenticated(details))
        case StatusCode.PERMISSION_DENIED:
            return _rebuilt(Forbidden, details, {})
        case StatusCode.NOT_FOUND:
            return NotFound("such thing", details)
        case _:
            return NodeFailed(f"{address} answered {code.name}: {details}")


def _texts(pairs: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else value.decode(errors="replace")
        for name, value in pairs or ()
    }
