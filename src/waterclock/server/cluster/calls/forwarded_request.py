"""A request of HTTP as another node passed it on, and what of it goes with it.

The node that was asked first has checked what the request needs. Of lists everyone sees what they
may, and what has a name is of a topic, which are for the node to say that has the list and leads
the records: so the client's rights go with the request.
"""

import msgspec

from waterclock.cluster.forwarded import ForwardedRequest
from waterclock.model.errors import BadInput
from waterclock.security.principals import ANYONE, Principal, rights_texts
from waterclock.security.rights import RightKind, parse_rights
from waterclock.server.http.identity import Asker
from waterclock.server.http.messages import Request

_ELSEWHERE = "somebody of another node"


def rights_of(request: Request) -> bytes:
    """Return the rights of who asks; nothing for those who may see everything."""
    return texts_of(request.principal)


def texts_of(principal: Principal) -> bytes:
    """Return what a principal may do; nothing for those who may do everything."""
    if principal is ANYONE or principal.rights.is_admin:
        return b""
    return msgspec.json.encode(rights_texts(principal.rights))


def principal_of(texts: bytes) -> Principal:
    """Return who asks another node; raises BadInput."""
    if not texts:
        return ANYONE
    try:
        found = msgspec.json.decode(texts, type=dict[RightKind, list[str]])
    except msgspec.MsgspecError as error:
        raise BadInput(f"rights: {error}") from None
    return Principal(_ELSEWHERE, parse_rights(found))


def request_of(asked: ForwardedRequest) -> Request:
    """Return what another node asks as a request of this one; raises BadInput."""
    headers = [(b"last-event-id", asked.last_event_id)] if asked.last_event_id else []
    request = Request(asked.method, asked.path, asked.query, headers, asked.body)
    request.left_ms = asked.left_ms
    request.partitions = _partitions(asked.partitions)
    if asked.rights:
        request.asker = Asker(principal_of(asked.rights))
    return request


def _partitions(text: bytes) -> tuple[int, ...]:
    if not text:
        return ()
    numbers = text.split(b",")
    if not all(number.isdigit() and len(number) < 10 for number in numbers):
        raise BadInput("partitions: are no numbers")
    return tuple(map(int, numbers))
