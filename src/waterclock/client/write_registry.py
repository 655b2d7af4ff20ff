"""The registry of writers: writing once, though a job is run again, in whole or in part.

    begun = await client.write_registry.begin("orders", "nightly-import", batch=7, task=3)
    if begun.state is WriteState.NEW:
        ...                                  # publish the rows of the task
        await client.write_registry.finish("orders", "nightly-import", batch=7, task=3, rows=1_000)

With BEGUN an attempt before this one may have stored some rows: they lie behind `begun.positions`.
With DONE and COMMITTED there is nothing to do. When all tasks of a batch are done, commit it.
"""

from waterclock.client.connection import Connection
from waterclock.model.protobuf import from_proto
from waterclock.model.views import WriteBegun, WriterInfo, WriteState
from waterclock.v1 import write_registry_pb2


class WriteRegistry:
    """Note what was written, and ask."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def begin(self, topic: str, writer: str, batch: int, task: int) -> WriteBegun:
        """Note that a task begins to write, durably; or learn how far it came before."""
        request = write_registry_pb2.BeginWriteRequest(
            topic=topic, writer=writer, batch=batch, task=task
        )
        response = await self._connection.call(self._connection.write_registry.BeginWrite, request)
        return from_proto(response, WriteBegun)

    async def finish(
        self, topic: str, writer: str, batch: int, task: int, *, rows: int
    ) -> WriteState:
        """Note that all rows of a task are stored; raises NotFound if it did not begin."""
        request = write_registry_pb2.FinishWriteRequest(
            topic=topic, writer=writer, batch=batch, task=task, rows=rows
        )
        response = await self._connection.call(self._connection.write_registry.FinishWrite, request)
        return WriteState(response.state)

    async def commit(self, topic: str, writer: str, batch: int) -> bool:
        """Note that a batch is whole, and all before it; return whether that is news."""
        request = write_registry_pb2.CommitWriteRequest(topic=topic, writer=writer, batch=batch)
        response = await self._connection.call(self._connection.write_registry.CommitWrite, request)
        return not response.was_committed

    async def abandon(self, topic: str, writer: str) -> bool:
        """Forget a writer; return whether there was one. What it has published stays."""
        request = write_registry_pb2.AbandonWriteRequest(topic=topic, writer=writer)
        response = await self._connection.call(
            self._connection.write_registry.AbandonWrite, request
        )
        return response.existed

    async def list(self, topic: str) -> list[WriterInfo]:
        """Return the writers of a topic, by name."""
        request = write_registry_pb2.ListWritersRequest(topic=topic)
        answer = await self._connection.call(self._connection.write_registry.ListWriters, request)
        return [from_proto(each, WriterInfo) for each in answer.writers]
