"""Topics over HTTP and JSON: all that the gRPC API offers, for a person with curl.

The same calls of the node as `broker_api.py`, `scheduler_api.py` and `admin_api.py`; other words.
"""

import waterclock
from waterclock.node.node import Node
from waterclock.server.http_operations import Operation
from waterclock.server.in_flight import BytesInFlight
from waterclock.server.polled_members import PolledMembers
from waterclock.server.topics_api_admin import TopicsApi
from waterclock.server.topics_api_consume import ConsumeApi
from waterclock.server.topics_api_groups import GroupsApi
from waterclock.server.topics_api_letters import LettersApi
from waterclock.server.topics_api_publish import PublishApi
from waterclock.server.topics_api_recurrences import RecurrencesApi
from waterclock.server.topics_api_replay import ReplayApi
from waterclock.server.topics_api_schedule import ScheduleApi


def topic_operations(
    node: Node, members: PolledMembers, publishing: BytesInFlight
) -> list[Operation]:
    """Return the part of the table that is about topics."""
    return [
        *PublishApi(node, publishing).operations(),
        *ConsumeApi(node, members).operations(),
        *ScheduleApi(node).operations(),
        *RecurrencesApi(node).operations(),
        *GroupsApi(node).operations(),
        *TopicsApi(node, waterclock.__version__).operations(),
        *ReplayApi(node).operations(),
        *LettersApi(node).operations(),
    ]
