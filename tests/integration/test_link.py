"""A link that is closed under its callers: they hear that it is gone, whenever they call."""

import pytest

from tests.integration.link import Gone, Link, hearing
from tests.kit.verdict import Findings
from waterclock.v1 import admin_pb2 as ap


async def test_who_calls_on_a_link_that_has_just_been_closed_hears_that_it_is_gone():
    link = Link(Findings())
    await link.open("127.0.0.1:1")
    await link.close()
    with pytest.raises(Gone), hearing():
        await link.admin.ListTopics(ap.ListTopicsRequest())
