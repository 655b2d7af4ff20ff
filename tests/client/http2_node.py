"""A node that speaks HTTP/2 by a script: what it answers to each call is up to the test."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from waterclock.client.unary.hpack import decoded, encoded
from waterclock.v1 import admin_pb2, broker_pb2

PREFACE_BYTES = 24
STREAM = 1


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """Return a frame as it is sent."""
    return len(body).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + body


def answered(message: bytes, *, stream: int) -> bytes:
    """Return the frames of an answer that went well."""
    head = encoded([(":status", "200"), ("content-type", "application/grpc")])
    data = b"\0" + len(message).to_bytes(4) + message
    return (
        frame(1, 0x4, stream, head)
        + frame(0, 0, stream, data)
        + frame(1, 0x5, stream, encoded([("grpc-status", "0")]))
    )


def refused(code: int, *trailers: tuple[str, str], stream: int) -> bytes:
    """Return the frames of a call that failed at once."""
    head = encoded([(":status", "200"), ("grpc-status", str(code)), *trailers])
    return frame(1, 0x5, stream, head)


class Http2Node:
    """Listens, and answers one connection after the other until it is closed."""

    def __init__(self, answer: "Callable[[Http2Node, str, bytes, int], bytes | None]") -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.published: list[broker_pb2.PublishRequest] = []
        self.window_sizes: list[int] = []
        self.settings = b""
        self.rooms: list[int] = []
        """What it lets come beyond the first 64 KiB, each time all it has room for came."""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def info(self, *others: str) -> bytes:
        """Return what it says of itself."""
        info = admin_pb2.NodeInfo(name=self.address, version="1", now_ms=1)
        for address in others:
            info.nodes.add(name=address, address=address)
        return info.SerializeToString()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as reader:
                self._converse(connection, reader)

    def _converse(self, connection: socket.socket, reader: "object") -> None:
        read = reader.read  # type: ignore[attr-defined]
        read(PREFACE_BYTES)
        connection.sendall(frame(4, 0, 0, self.settings))
        path, message = "", b""
        while len(head := read(9)) == 9:
            size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            stream = int.from_bytes(head[5:])
            body = read(size)
            if kind == 1:
                path = dict(decoded(body))[":path"]
            elif kind == 0:
                message += body
                self.window_sizes.append(size)
                if self.rooms and not flags & 1:
                    room = self.rooms.pop().to_bytes(4)
                    connection.sendall(frame(8, 0, 0, room) + frame(8, 0, stream, room))
                if flags & 1:
                    answer = self._answer(self, path, message[5:], stream)
                    message = b""
                    if answer is None:
                        return
                    connection.sendall(answer)


@contextmanager
def http2_node(
    answer: "Callable[[Http2Node, str, bytes, int], bytes | None]",
) -> Iterator[Http2Node]:
    """Run such a node for a block."""
    node = Http2Node(answer)
    try:
        yield node
    finally:
        node.close()
