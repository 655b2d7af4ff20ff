"""Has the leaders of other partitions cancel what is pending there, for whatever in this node asks.

A recurrence is kept by the node that leads the records, and what it has scheduled lies in
partitions that others lead.
"""

from waterclock.cluster.remote_calls import BadCall
from waterclock.model.errors import NotLeader, Unreachable
from waterclock.node.partition.host import PartitionHost
from waterclock.node.places import Places
from waterclock.node.schedule.named_changes import Named
from waterclock.node.schedule.pending import PendingMessages
from waterclock.server.cluster.calls.forwarding import Trying
from waterclock.server.cluster.calls.remote_calls import RemoteCalls
from waterclock.server.cluster.calls.whole_answer import Lost
from waterclock.v1 import scheduler_pb2 as pb

CANCEL = "Scheduler/Cancel"


class RemoteCancels:
    """Asks leaders to cancel. What is asked again does no harm."""

    def __init__(self, remote: RemoteCalls, places: Places, pending: PendingMessages) -> None:
        self._remote = remote
        self._places = places
        self._pending = pending

    def __repr__(self) -> str:
        return f"<RemoteCancels of {self._places.me}>"

    async def cancel(self, host: PartitionHost, named: Named) -> int:
        """Return what became of the message at a position. Its leader may be asked twice; raises
        Unavailable if none is found that answers."""
        trying = Trying()
        while not host.is_here:
            leader = self._places.leader_of(host.topic, host.partition)
            try:
                if leader is None or leader == self._places.me:
                    raise NotLeader(f"{host.topic}/{host.partition}", leader=leader or "")
                return await self._ask(leader, host, named)
            except (NotLeader, Unreachable, Lost) as error:
                await trying.pause(error)
        return await self._pending.cancel_at(host.topic, named)

    async def _ask(self, leader: str, host: PartitionHost, named: Named) -> int:
        # With its id, if that is known: a topic made anew has other messages at the same positions.
        # And not by that alone, which a node without dedup has no index of.
        assert named.position is not None
        pending = pb.Pending(message_id=named.message_id)
        pending.position.partition, pending.position.offset = named.position
        asked = pb.CancelRequest(topic=host.topic, pending=[pending]).SerializeToString()
        answer = await self._remote.unary(leader, CANCEL, asked, partitions=(host.partition,))
        outcomes = pb.CancelResponse.FromString(answer).outcomes
        if len(outcomes) != 1:
            raise BadCall(f"{leader} did not give one answer to {CANCEL}")
        return outcomes[0]
