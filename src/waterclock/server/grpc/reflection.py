"""The standard reflection service, for tools that learn the API from the node.

The answers are the library's; the requests are read here, so that its calls are bounded and counted
as all others are.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

from google.protobuf.descriptor import ServiceDescriptor
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import DESCRIPTOR

from waterclock.server.calls import Stream

SERVICE = cast(ServiceDescriptor, DESCRIPTOR.services_by_name["ServerReflection"])


class Reflection:
    """The methods of `grpc.reflection.v1alpha.ServerReflection`."""

    def __init__(self, services: Iterable[str]) -> None:
        names = [*services, reflection.SERVICE_NAME]
        self._servicer: Any = reflection.aio.ReflectionServicer(service_names=names)

    async def server_reflection_info(self, _: object, stream: Stream) -> None:
        """Answer until there are no more questions."""
        async for answer in self._servicer.ServerReflectionInfo(_questions(stream), None):
            await stream.write(answer.SerializeToString())


async def _questions(stream: Stream) -> AsyncIterator[Any]:
    while (request := await stream.read()) is not None:
        yield request
