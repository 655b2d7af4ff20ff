"""The write registry over gRPC: the same words, and errors with their names."""

from typing import Any

from grpc import StatusCode

from tests.server.served import failure, running_server
from waterclock.v1 import write_registry_pb2 as pb

TASK: dict[str, Any] = {"topic": "orders", "writer": "q", "batch": 0, "task": 0}


async def test_a_batch_is_begun_finished_and_committed(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a", b"b")
        new = await it.write_registry.BeginWrite(pb.BeginWriteRequest(**TASK))
        begun = await it.write_registry.BeginWrite(pb.BeginWriteRequest(**TASK))
        finished = await it.write_registry.FinishWrite(pb.FinishWriteRequest(**TASK, rows=3))
        done = await it.write_registry.BeginWrite(pb.BeginWriteRequest(**TASK))
        batch = pb.CommitWriteRequest(topic="orders", writer="q", batch=0)
        first, again = (
            await it.write_registry.CommitWrite(batch),
            await it.write_registry.CommitWrite(batch),
        )
        over = await it.write_registry.BeginWrite(pb.BeginWriteRequest(**TASK))

        states = [answer.state for answer in (new, begun, finished, done, over)]
        assert [pb.WriteState.Name(state).split("_")[-1] for state in states] == [
            "NEW",
            "BEGUN",
            "DONE",
            "DONE",
            "COMMITTED",
        ]
        for answer in (new, begun):
            assert [(p.partition, p.offset) for p in answer.positions] == [(0, 2)]
        assert done.rows == 3
        assert not done.positions
        assert (first.was_committed, again.was_committed, again.committed) == (False, True, 0)


async def test_writers_are_listed_and_abandoned(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        await it.write_registry.BeginWrite(pb.BeginWriteRequest(**TASK))
        commit = pb.CommitWriteRequest(topic="orders", writer="r", batch=0)
        await it.write_registry.CommitWrite(commit)
        listed = await it.write_registry.ListWriters(pb.ListWritersRequest(topic="orders"))
        q, r = listed.writers
        assert (q.writer, q.HasField("committed"), q.open_tasks) == ("q", False, 1)
        assert (r.writer, r.HasField("committed"), r.committed) == ("r", True, 0)
        abandon = pb.AbandonWriteRequest(topic="orders", writer="q")
        assert (await it.write_registry.AbandonWrite(abandon)).existed
        assert not (await it.write_registry.AbandonWrite(abandon)).existed


async def test_what_cannot_be_is_refused_by_name(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        unbegun = it.write_registry.FinishWrite(pb.FinishWriteRequest(**TASK))
        assert (await failure(unbegun))[0] is StatusCode.NOT_FOUND
        for change in ({"writer": "a/b"}, {"batch": -1}, {"task": -1}):
            call = it.write_registry.BeginWrite(pb.BeginWriteRequest(**{**TASK, **change}))
            code, _, facts = await failure(call)
            assert (code, facts["error"]) == (StatusCode.INVALID_ARGUMENT, "BadInput")
        unknown = it.write_registry.ListWriters(pb.ListWritersRequest(topic="none"))
        assert (await failure(unknown))[2]["error"] == "UnknownTopic"
