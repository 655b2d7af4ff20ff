"""How a failed HTTP request is answered: a problem (RFC 9457) with the facts.

The code is that of gRPC (`statuses.py`), seen as HTTP; so both APIs tell the same errors apart.
Beside the members of the standard there are `error`, its name in our tree, and the facts it
carries, such as `field` and `limit`.
"""

import re
from collections.abc import Mapping

from grpc import StatusCode

from waterclock.cluster.remote_calls import UnforeseenElsewhere
from waterclock.model import errors
from waterclock.model.errors import (
    BadInput,
    CapacityReached,
    ForgedToken,
    LimitExceeded,
    QuotaExceeded,
    StorageFull,
    WaterclockError,
)
from waterclock.server.http.messages import Request, Response, problem
from waterclock.server.statuses import code_of, log_unforeseen, ours

HTTP_STATUSES: Mapping[StatusCode, int] = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.OUT_OF_RANGE: 404,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.FAILED_PRECONDITION: 409,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DATA_LOSS: 500,
    StatusCode.INTERNAL: 500,
    StatusCode.UNKNOWN: 500,
}
RETRY_AFTER = b"Retry-After: 1\r\n"
BEARER = b"WWW-Authenticate: Bearer\r\n"
"""What to send with a request that was answered 401 (RFC 6750)."""
DETAIL_CHARS_MAX = 1_000
_FIELD = re.compile(r"([A-Za-z_][\w.]*)(?::| must )")


class BadField(BadInput):
    """A field of a request is wrong; both are named."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def within(self, path: str) -> "BadField":
        """Return it as one of a part of the request."""
        return BadField(f"{path}.{self.field}", self.problem)


def status_of(error: WaterclockError) -> int:
    """Return the HTTP status of an error of ours."""
    if isinstance(error, StorageFull):
        return 507
    if isinstance(error, ForgedToken):
        return 403
    is_size = isinstance(error, LimitExceeded) and error.field.endswith("bytes")
    if is_size and not isinstance(error, CapacityReached):
        return 413
    return HTTP_STATUSES[code_of(error)]


def problem_of(error: BaseException, request: Request | None = None) -> Response:
    """Return what to answer; what is a bug of ours goes to the log, with an id to find it by."""
    found = ours(error)
    if isinstance(error, UnforeseenElsewhere):
        return problem(500, str(error), errorId=error.error_id)
    if found is None:
        where = "HTTP"
        if request is not None:
            where = f"{request.method.decode()} {request.path.decode('latin-1')}"
        error_id = log_unforeseen(where, error)
        detail = f"something unforeseen happened, logged as error {error_id}"
        return problem(500, detail, errorId=error_id)
    status = status_of(found)
    return problem(status, str(found)[:DETAIL_CHARS_MAX], _headers(found, status), **_facts(found))


def _headers(error: WaterclockError, status: int) -> bytes:
    if isinstance(error, QuotaExceeded):
        return b"Retry-After: %d\r\n" % -(-error.retry_after_ms // 1_000)
    if status == 401:
        return BEARER
    return RETRY_AFTER if status in (429, 503) else b""


def _facts(error: WaterclockError) -> dict[str, object]:
    # As the client's own tree has it: those of this package are kinds of others.
    name = next(k.__name__ for k in type(error).__mro__ if k.__module__ == errors.__name__)
    facts: dict[str, object] = {"error": name}
    facts |= {k: v for k, v in vars(error).items() if isinstance(v, int | str) and k != "problem"}
    if isinstance(error, BadInput) and "field" not in facts:
        named = _FIELD.match(str(error))
        if named is not None:
            facts["field"] = named[1]
    return facts
