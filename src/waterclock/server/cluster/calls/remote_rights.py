"""Has the node that writes the records write what a folder has to tell of rights.

Only nodes can ask for that: the method is none of the gRPC API, and is answered on links between
nodes alone. Asked again it does no harm.
"""

import msgspec

from waterclock.cluster.remote_calls import BadCall
from waterclock.node.places import Places
from waterclock.node.rights import RightsRecords
from waterclock.security.shared_rights import Change, Decision
from waterclock.server.cluster.calls.answering import NodesMethod
from waterclock.server.cluster.calls.remote_calls import RemoteCalls
from waterclock.server.cluster.calls.remote_topics import ask_leader

SHARE_RIGHTS = "Nodes/ShareRights"
CHANGES_MAX = 200
"""In one request; what is left follows in the next."""


class Sharing(msgspec.Struct, frozen=True):
    """What the folder of a node has to tell."""

    changes: list[Change]
    keeps_admin: bool


class Answer(msgspec.Struct, frozen=True):
    """What does not hold of it: admins who stay, and what cannot be written now, with reasons."""

    kept: tuple[str, ...] = ()
    refused: dict[str, str] = {}


class RemoteRights:
    """Tells the leader of the records, whichever node that is."""

    def __init__(self, remote: RemoteCalls, places: Places, rights: RightsRecords) -> None:
        self.places = places
        self._remote = remote
        self._rights = rights

    async def share(self, changes: tuple[Change, ...], *, keeps_admin: bool) -> Answer:
        """Return what does not hold of the first of these changes; all else is committed, if it was
        not void. Raises Unavailable if nobody knows."""
        first = list(changes[:CHANGES_MAX])
        if self._rights.is_leading:
            return _answer_of(await self._rights.share(first, keeps_admin=keeps_admin))
        request = msgspec.json.encode(Sharing(first, keeps_admin))
        answer = await ask_leader(self._remote, self.places, SHARE_RIGHTS, request)
        try:
            return msgspec.json.decode(answer, type=Answer)
        except msgspec.MsgspecError as error:
            raise BadCall(f"{SHARE_RIGHTS}: {error}") from None


def sharing_of(rights: RightsRecords) -> NodesMethod:
    """Return what answers other nodes that have changes to tell."""

    async def share(request: bytes) -> bytes:
        try:
            asked = msgspec.json.decode(request, type=Sharing)
        except msgspec.MsgspecError as error:
            raise BadCall(f"{SHARE_RIGHTS}: {error}") from None
        decision = await rights.share(asked.changes, keeps_admin=asked.keeps_admin)
        return msgspec.json.encode(_answer_of(decision))

    return share


def _answer_of(decision: Decision) -> Answer:
    return Answer(decision.kept, dict(decision.refused))
