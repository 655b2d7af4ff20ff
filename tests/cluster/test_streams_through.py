"""Every test of streams over HTTP again, asked of a node that owns nothing: another one answers."""

from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.cluster.clustered import meet, member
from tests.server import (
    test_published_streams,
    test_stored_streams,
    test_stream_events,
    test_stream_listeners,
    test_stream_requests,
    test_streams_api,
)

SUITES = (
    test_streams_api,
    test_stream_events,
    test_stream_listeners,
    test_stream_requests,
    test_stored_streams,
    test_published_streams,
)

ON_ITS_WAY = {"test_what_came_for_a_listener_that_goes_is_not_lost"}
"""What was given to a listener in another node is on its way there, as if it were in a socket."""

for suite in SUITES:
    globals().update(
        {
            name: test
            for name, test in vars(suite).items()
            if name.startswith("test_") and name not in ON_ITS_WAY
        }
    )


class Through(test_streams_api.Streaming):
    """Asks the node in front; looks into the one that owns."""

    def __init__(self, front, owner, stack):
        super().__init__(front, stack)
        self.owner = owner
        self.node = owner.node
        self.host = owner.node.streams


@asynccontextmanager
async def through(folder, **sections):
    async with (
        member(folder, "owner", **sections) as owner,
        member(folder / "front", "front", **sections) as front,
        AsyncExitStack() as stack,
    ):
        await meet(owner, front, owners=(owner,))
        yield Through(front, owner, stack)


@pytest.fixture(autouse=True)
def asked_in_front(monkeypatch):
    for suite in SUITES:
        monkeypatch.setattr(suite, "streaming", through)
