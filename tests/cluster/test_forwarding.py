"""What a client of another node may do, as the node that has the records sees it."""

from typing import Any, cast

import pytest

from waterclock.model.errors import Forbidden
from waterclock.security.principals import Principal
from waterclock.security.rights import parse_rights
from waterclock.server.cluster.calls.forwarded_request import texts_of
from waterclock.server.cluster.calls.forwarding import Forwarding
from waterclock.v1.admin_pb2 import JobRun, PutJobRunRequest

ACME = texts_of(Principal("acme", parse_rights({"read": ["acme.*"]})))


def permit(run: JobRun, known: dict[str, str]) -> None:
    nothing = cast(Any, None)
    forwarding = Forwarding(nothing, nothing, {"run": known.get})
    forwarding.permit("Admin/PutJobRun", PutJobRunRequest(run=run), ACME)


def test_what_has_a_name_is_of_the_topic_that_it_has_here():
    permit(JobRun(name="compact"), {"compact": "acme.orders"})
    with pytest.raises(Forbidden):
        permit(JobRun(name="compact", topic="acme.orders"), {"compact": "orders"})
    with pytest.raises(Forbidden):
        permit(JobRun(name="compact"), {"compact": ""})


def test_what_is_not_there_any_more_is_not_made_where_the_client_may_not():
    """The other node let it in for the topic of the run that it still knows."""
    permit(JobRun(name="compact", topic="acme.orders"), {})
    for topic in ("", "orders"):
        with pytest.raises(Forbidden):
            permit(JobRun(name="compact", topic=topic), {})
