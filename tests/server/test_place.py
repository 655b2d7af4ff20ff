"""Every call about topics says which node of several answers it."""

from typing import Any

import pytest

from tests.server.served import running_server
from waterclock.server.app import APIS
from waterclock.server.cluster.calls.place import Place
from waterclock.server.grpc.needs import METHODS
from waterclock.server.http.operations import Operation
from waterclock.server.http.permits import field_reader

STREAMS = {"streams", "ipubsub", "cluster"}
"""Streams have owners, by a hash ring; of the node itself and its cluster every node knows."""


async def operations_in(folder) -> list[Operation]:
    async with running_server(folder) as served:
        return list(served.server.operations)


def places():
    return [(name, row.place) for name, row in METHODS.items()]


def fields_of(place: Place) -> list[str]:
    named = (place.topic, place.group, place.partition, place.meta_if, place.repeatable_if)
    return [field for field in named if field is not None]


@pytest.mark.parametrize(("method", "place"), places())
def test_the_fields_of_a_methods_place_are_those_of_its_request(method, place):
    service, _, name = method.partition("/")
    found = [each for api in APIS if api.name == service for each in api.methods]
    requests: list[Any] = [each.input_type for each in found if each.name == name]

    for request in requests:
        for field in fields_of(place):
            *parts, last = field.split(".")
            at = request
            for part in parts:
                at = at.fields_by_name[part].message_type
            assert last in at.fields_by_name


async def test_every_operation_on_topics_says_its_place(tmp_path):
    about = [one for one in await operations_in(tmp_path) if one.tag not in (*STREAMS, "node")]

    assert [one.name for one in about if one.place is None] == []
    assert len(about) > 25
    for one in about:
        assert one.place is not None
        for field in fields_of(one.place):
            assert field_reader(one, field) is not None


async def test_over_http_and_grpc_the_same_is_answered_by_the_same_node(tmp_path):
    operations = await operations_in(tmp_path)
    by_name = {name.partition("/")[2].lower(): row.place for name, row in METHODS.items()}
    same = [one for one in operations if one.place and one.name.lower() in by_name]

    differ = [one.name for one in same if one.place != by_name[one.name.lower()]]

    # Over gRPC the first request of the stream names it.
    assert differ == ["replay"]
    assert len(same) > 15
