"""A node that comes waits until it shows the records of its cluster."""

from types import SimpleNamespace
from typing import Any

from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Frames
from waterclock.model.ids import Epoch, Offset
from waterclock.server.cluster.replication.hosted import Hosted

LOG = b"l" * 16
END = Offset(27)


async def test_one_that_has_all_records_is_told_so_when_it_hears_the_leader():
    changes: list[bool] = []
    deadlines = SimpleNamespace(set=lambda hosted, due_ms: None)
    replicator: Any = SimpleNamespace(now_ms=lambda: 0, deadlines=deadlines)
    host: Any = SimpleNamespace(is_open=True, is_led=False)
    host.store = SimpleNamespace(acknowledged_end=END)
    core: Any = SimpleNamespace(received=lambda *_: [], next_deadline=lambda: None)
    meta = Hosted(replicator, host, LOG, factor=3, is_everywhere=True)
    meta.core = core
    replicator.note_change = lambda: changes.append(meta.shows_all_it_joined_to())

    meta.received(ReplicaId("a:disk"), Frames(LOG, Epoch(1), END, END, b""))

    assert changes == [True]
