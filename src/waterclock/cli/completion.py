"""Names of topics for a shell that completes a command: asked of the node at once, or left out.

Somebody has pressed a key and waits: a node that does not answer in half a second offers no names,
and nothing that goes wrong is told, as it would be printed into the line that is being typed.
"""

import socket

import typer

CONNECT_S = 0.2
ANSWER_S = 0.5


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin so, none if the node cannot be asked."""
    from waterclock.client.connection import address_of
    from waterclock.model.errors import BadInput

    try:
        address = address_of(context.params.get("address"))
        host, _, port = address.rpartition(":")
        # Before gRPC is loaded, which takes longer than this.
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, BadInput):
        return []
    return [name for name in _topics(address) if name.startswith(incomplete)]


def _topics(address: str) -> list[str]:
    import grpc

    from waterclock.v1 import admin_pb2, admin_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        try:
            asked = admin_pb2.ListTopicsRequest()
            told = admin_pb2_grpc.AdminStub(channel).ListTopics(asked, timeout=ANSWER_S)
        except grpc.RpcError:
            return []
        return [topic.topic for topic in told.topics]
