"""The table of operations on topics: what gRPC offers, for a person with curl.

Handlers make the same calls of the node as the services in `server/grpc`.
"""

from waterclock.node.node import Node
from waterclock.server.calls import BytesInFlight
from waterclock.server.http.operations import Operation
from waterclock.server.rest.all_scheduled import AllScheduledApi
from waterclock.server.rest.consume import ConsumeApi
from waterclock.server.rest.consumers import HttpConsumers
from waterclock.server.rest.dead_letters import DeadLettersApi
from waterclock.server.rest.groups import GroupsApi
from waterclock.server.rest.job_runs import JobRunsApi
from waterclock.server.rest.publish import PublishApi
from waterclock.server.rest.recurrences import RecurrencesApi
from waterclock.server.rest.replay import ReplayApi
from waterclock.server.rest.schedule import ScheduleApi
from waterclock.server.rest.topics import TopicsApi


def topic_operations(
    node: Node, consumers: HttpConsumers, publishing: BytesInFlight
) -> list[Operation]:
    """Return the part of the table that is about topics."""
    return [
        *PublishApi(node, publishing).operations(),
        *ConsumeApi(node, consumers).operations(),
        *ScheduleApi(node).operations(),
        *AllScheduledApi(node).operations(),
        *RecurrencesApi(node).operations(),
        *GroupsApi(node).operations(),
        *TopicsApi(node).operations(),
        *ReplayApi(node).operations(),
        *JobRunsApi(node).operations(),
        *DeadLettersApi(node).operations(),
    ]
