"""A client of bare HTTP/2 frames: it opens calls and sends as much of their requests as it may."""

import socket
import ssl
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
ACK = END_STREAM = 1
END_HEADERS = 4
TRAILERS = "t" + "e"
FRAME_BYTES = 16_384
IDLE_S = 0.5
"""How long the node must have said nothing: then it takes no more."""


class RawHttp2:
    """One connection; `sent` says how many bytes of each call's request the node has let in."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.sent: dict[int, int] = {}
        self.ended: set[int] = set()
        self._left: dict[int, int] = {}
        self._windows: dict[int, int] = {0: 65_535}
        self._initial = 65_535
        self._buffer = b""
        self._send(SETTINGS, 0, 0, b"", before=PREFACE)

    def call(self, path: str, size: int, headers: Iterable[tuple[str, str]] = ()) -> int:
        """Open a call whose request says it has so many bytes; its last is never sent."""
        number = 2 * len(self.sent) + 1
        named = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            (TRAILERS, "trailers"),
            *headers,
        ]
        self._send(HEADERS, END_HEADERS, number, b"".join(map(_literal, named)))
        self._windows[number] = self._initial
        self._send(DATA, 0, number, struct.pack(">BI", 0, size))
        self._windows[number] -= 5
        self._windows[0] -= 5
        self._left[number], self.sent[number] = size - 1, 0
        return number

    def send_all_that_is_let_in(self) -> int:
        """Return how many bytes the node has of calls that go on."""
        self.socket.settimeout(IDLE_S)
        while True:
            for number in self._left:
                self._send_some(number)
            try:
                self._hear(*self._frame())
            except TimeoutError:
                return sum(size for number, size in self.sent.items() if number not in self.ended)

    def hear_until_all_have_ended(self) -> None:
        """Return when the node has ended every call."""
        self.socket.settimeout(30)
        while len(self.ended) < len(self.sent):
            self._hear(*self._frame())

    def _send_some(self, number: int) -> None:
        while number not in self.ended:
            may = min(self._left[number], self._windows[number], self._windows[0], FRAME_BYTES)
            if may <= 0:
                return
            self._send(DATA, 0, number, bytes(may))
            self.sent[number] += may
            self._left[number] -= may
            self._windows[number] -= may
            self._windows[0] -= may

    def _hear(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self._settle(payload)
        elif kind == WINDOW and number in self._windows:
            self._windows[number] += int.from_bytes(payload, "big")
        elif kind == RST or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(number)
        elif kind == PING and not flags & ACK:
            self._send(PING, ACK, 0, payload)

    def _settle(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == 4:  # the initial window
                for number in self._windows.keys() - {0}:
                    self._windows[number] += value - self._initial
                self._initial = value
        self._send(SETTINGS, ACK, 0, b"")

    def _frame(self) -> tuple[int, int, int, bytes]:
        head = self._exactly(9)
        payload = self._exactly(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            received = self.socket.recv(1 << 16)
            if not received:
                raise ConnectionError("the node has closed the connection")
            self._buffer += received
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _send(
        self, kind: int, flags: int, number: int, payload: bytes, before: bytes = b""
    ) -> None:
        head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
        self.socket.sendall(before + head + struct.pack(">I", number) + payload)


def _literal(header: tuple[str, str]) -> bytes:
    """Return a header as HPACK writes one that is in no table."""
    return b"\x00" + b"".join(_text(part.encode()) for part in header)


def _text(data: bytes) -> bytes:
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, more = len(data) - 127, []
    while rest >= 128:
        more.append(rest % 128 + 128)
        rest //= 128
    return bytes([127, *more, rest]) + data
