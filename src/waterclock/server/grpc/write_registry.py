"""The registry of writers over gRPC."""

from waterclock.model.protobuf import to_proto
from waterclock.node.node import Node
from waterclock.v1 import write_registry_pb2 as pb


class WriteRegistryApi:
    """The methods of `waterclock.v1.WriteRegistry`."""

    def __init__(self, node: Node) -> None:
        self._registry = node.write_registry

    async def begin_write(self, request: pb.BeginWriteRequest) -> pb.BeginWriteResponse:
        """Note that a task begins, or tell how far it came before."""
        begun = await self._registry.begin(
            request.topic, request.writer, request.batch, request.task
        )
        return to_proto(begun, pb.BeginWriteResponse)

    async def finish_write(self, request: pb.FinishWriteRequest) -> pb.FinishWriteResponse:
        """Note that all rows of a task are stored."""
        state = await self._registry.finish(
            request.topic, request.writer, request.batch, request.task, rows=request.rows
        )
        return pb.FinishWriteResponse(state=pb.WriteState.ValueType(state))

    async def commit_write(self, request: pb.CommitWriteRequest) -> pb.CommitWriteResponse:
        """Note that a batch is whole."""
        was_committed, committed = await self._registry.commit(
            request.topic, request.writer, request.batch
        )
        return pb.CommitWriteResponse(was_committed=was_committed, committed=committed)

    async def abandon_write(self, request: pb.AbandonWriteRequest) -> pb.AbandonWriteResponse:
        """Forget a writer."""
        existed = await self._registry.abandon(request.topic, request.writer)
        return pb.AbandonWriteResponse(existed=existed)

    async def list_writers(self, request: pb.ListWritersRequest) -> pb.ListWritersResponse:
        return pb.ListWritersResponse(
            writers=[to_proto(each, pb.Writer) for each in self._registry.list(request.topic)]
        )
