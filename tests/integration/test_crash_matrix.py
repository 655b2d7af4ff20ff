"""A short run of the crash matrix, as `make test` can afford it; `make crash N=50` runs longer."""

from types import SimpleNamespace
from typing import Any

from tests.integration import crash_matrix
from tests.integration.crash_matrix import PARTITIONS, Matrix, run_matrix
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import scheduler_pb2 as sp

SEED = 17


class SlowFlush:
    """A node whose last messages have fired in every partition, and are not flushed yet."""

    def __init__(self) -> None:
        self.written = [1] * PARTITIONS
        self.readable = [0] * PARTITIONS
        self.done = [0] * PARTITIONS

    async def CountScheduled(self, _: Any) -> sp.CountScheduledResponse:
        return sp.CountScheduledResponse(total=0)

    async def Publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        partition = request.partition
        self.written[partition] += 1
        self.readable[partition] = self.written[partition]
        offset = self.written[partition] - 1
        return pb.PublishResponse(partition=partition, offset=offset, is_new=True)

    async def GetGroup(self, _: Any) -> ap.Group:
        lags = [end - done for end, done in zip(self.readable, self.done, strict=True)]
        self.done = list(self.readable)
        return ap.Group(partitions=[ap.Group.Partition(lag=lag) for lag in lags])


async def test_a_run_is_over_when_what_fired_last_was_flushed_and_delivered(tmp_path, monkeypatch):
    monkeypatch.setattr(crash_matrix, "DUE_AHEAD_MS", 0)
    matrix, node = Matrix(tmp_path, SEED, rounds=0), SlowFlush()
    monkeypatch.setattr(matrix, "node", SimpleNamespace(is_running=True))
    matrix.link.broker = matrix.link.scheduler = matrix.link.admin = node

    await matrix._quiet()

    assert node.done == node.written


def test_a_node_killed_and_stopped_under_load_keeps_every_guarantee(tmp_path):
    matrix = Matrix(tmp_path, SEED, rounds=5, round_s_max=2.5)
    run_matrix(matrix)

    history = matrix.history
    assert not history.findings, str(history.findings)
    assert len(history.runs) >= 6
    # It was a load worth the name.
    assert history.counts["messages"] > 300
    assert history.counts["cancelled"] > 5
    assert history.repeats.total() > 5
