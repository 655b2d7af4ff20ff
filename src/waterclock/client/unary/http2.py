"""One connection of HTTP/2 and one gRPC call on it at a time (RFC 9113; gRPC's own page, "gRPC over
HTTP2"), by plain sockets that block.

A program that asks a node once and is gone needs no more, and gRPC's library takes longer to load
than all of its work. The windows we offer are as large as can be, so that no answer waits for us;
those of the node are kept. Whatever is not understood ends the connection, never the program.

`NeverSent` says that the node has not seen a call, `ConnectionLost` that it may have.
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from waterclock.client.unary.hpack import BadHeaders, decoded, encoded

if TYPE_CHECKING:
    import ssl

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ALPN = "h2"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 4, 5
WINDOW_MAX = (1 << 31) - 1
WINDOW_DEFAULT = 65_535
FRAME_BYTES = 16_384
"""What a frame may have before the other side has said otherwise; we never do."""
REFUSED_STREAM = 7
_PREFIX = struct.Struct(">?I")
_RECEIVE_BYTES = 65_536


class ConnectionLost(Exception):
    """The connection ended before the answer was whole: the call may have been served."""


class NeverSent(Exception):
    """The node has not seen the call."""


class NotHttp2(Exception):
    """What answers speaks something else; `greeting` is how it began."""

    def __init__(self, greeting: bytes) -> None:
        super().__init__(f"it begins with {greeting[:16]!r}")
        self.greeting = greeting


class Answer(NamedTuple):
    """What came of a call."""

    code: int
    """The status of gRPC; 0 is success."""
    details: str
    metadata: dict[str, str]
    body: bytes


class Http2Connection:
    """A connection to a node. Once an error came out of it, it is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: "Callable[[], ssl.SSLContext] | None",
        timeout_s: float,
    ) -> None:
        """Connect; raises OSError, of which ssl.SSLError is one. What TLS needs is made only once
        somebody is there."""
        self._authority = f"{f'[{host}]' if ':' in host else host}:{port}"
        self._scheme = "http" if tls is None else "https"
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = _secured(self._socket, tls, host)
        self._received = b""
        self._has_heard = False
        self._is_over = False
        self._stream = -1
        self._ends_at = 0.0
        self._frame_bytes = FRAME_BYTES
        self._window = self._stream_window_initial = WINDOW_DEFAULT
        """How much may be sent, on the connection and on a new stream."""
        self._stream_window = 0
        self._taken = 0
        settings = ((HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, WINDOW_MAX))
        body = b"".join(struct.pack(">HI", *each) for each in settings)
        # Kept until the first call, and sent with it.
        self._unsent = PREFACE + _frame(SETTINGS, 0, 0, body)
        self._unsent += _window_update(WINDOW_MAX - WINDOW_DEFAULT)

    def __repr__(self) -> str:
        return f"<Http2Connection to {self._authority}{', over' if self._is_over else ''}>"

    def close(self) -> None:
        """Hang up."""
        self._is_over = True
        self._socket.close()

    def is_usable(self) -> bool:
        """Return whether another call can be made; what came meanwhile is taken in."""
        try:
            while not self._is_over and self._is_readable():
                self._ends_at = time.monotonic()
                self._take_frame(_Call())
        except (ConnectionLost, NotHttp2, NeverSent, TimeoutError):
            self.close()
        return not self._is_over

    def call(
        self, path: str, message: bytes, metadata: Iterable[tuple[str, str]], *, timeout_s: float
    ) -> Answer:
        """Make a unary call and return its answer.

        Raises TimeoutError, ConnectionLost, NeverSent or NotHttp2.
        """
        self._ends_at = time.monotonic() + timeout_s
        self._stream += 2
        self._stream_window = self._stream_window_initial
        head = encoded(
            (
                (":method", "POST"),
                (":scheme", self._scheme),
                (":path", path),
                (":authority", self._authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("grpc-timeout", f"{min(max(int(timeout_s * 1_000), 1), 99_999_999)}m"),
                *metadata,
            )
        )
        answering = _Call()
        try:
            self._send(_headers(self._stream, head))
            self._send_data(_PREFIX.pack(False, len(message)) + message, answering)
            while not answering.is_over:
                self._take_frame(answering)
        except BaseException:
            self.close()
            raise
        return answering.answer()

    # Sending

    def _send(self, data: bytes) -> None:
        data, self._unsent = self._unsent + data, b""
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            if not self._is_readable():
                raise ConnectionLost(error.strerror or str(error)) from error
            # It may have said why before it hung up.

    def _send_data(self, data: bytes, answering: "_Call") -> None:
        view, at = memoryview(data), 0
        while at < len(view) and not answering.is_over:
            size_max = min(self._window, self._stream_window, self._frame_bytes)
            if size_max <= 0:
                self._take_frame(answering)
                continue
            piece = view[at : at + size_max]
            at += len(piece)
            self._window -= len(piece)
            self._stream_window -= len(piece)
            self._send(_frame(DATA, END_STREAM * (at == len(view)), self._stream, bytes(piece)))

    # Receiving

    def _take_frame(self, answering: "_Call") -> None:
        head = self._receive(9)
        size, kind = int.from_bytes(head[:3]), head[3]
        flags, stream = head[4], int.from_bytes(head[5:]) & WINDOW_MAX
        if not self._has_heard and kind != SETTINGS:
            raise NotHttp2(head + self._received)
        self._has_heard = True
        if size > FRAME_BYTES:
            raise ConnectionLost(f"a frame of {size} bytes came, which was not agreed on")
        body = self._receive(size)
        match kind:
            case _ if stream and stream != self._stream:
                pass  # of a call that is over
            case 0:  # DATA
                self._give_credit(size)
                answering.take(_unpadded(flags, body), is_last=bool(flags & END_STREAM))
            case 1 | 9:  # HEADERS, CONTINUATION
                answering.take_headers(_block(kind, flags, body), flags)
            case 3:  # RST_STREAM
                reason = int.from_bytes(body[:4])
                lost = NeverSent if reason == REFUSED_STREAM else ConnectionLost
                raise lost(f"the node broke the call off (rst_stream {reason})")
            case 4 if not flags & ACK:  # SETTINGS
                self._adopt(body)
            case 6 if not flags & ACK:  # PING
                self._send(_frame(PING, ACK, 0, body))
            case 7:  # GOAWAY
                self._is_over = True
                if int.from_bytes(body[:4]) < self._stream:
                    raise NeverSent("the node takes no more calls (goaway)")
            case 8:  # WINDOW_UPDATE
                added = int.from_bytes(body[:4]) & WINDOW_MAX
                if stream:
                    self._stream_window += added
                else:
                    self._window += added

    def _adopt(self, body: bytes) -> None:
        for at in range(0, len(body) - 5, 6):
            name, value = struct.unpack_from(">HI", body, at)
            if name == INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._stream_window_initial
                self._stream_window_initial = value
            elif name == MAX_FRAME_SIZE:
                self._frame_bytes = value
        self._send(_frame(SETTINGS, ACK, 0, b""))

    def _give_credit(self, size: int) -> None:
        self._taken += size
        if self._taken > WINDOW_MAX // 2:
            self._send(_window_update(self._taken))
            self._taken = 0

    def _receive(self, size: int) -> bytes:
        pieces, have = [self._received], len(self._received)
        while have < size:
            try:
                self._socket.settimeout(self._left_s())
                data = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                raise
            except OSError as error:
                raise self._ended(pieces, error.strerror or str(error)) from error
            if not data:
                raise self._ended(pieces, "connection closed by the node")
            pieces.append(data)
            have += len(data)
        whole = b"".join(pieces)
        self._received = whole[size:]
        return whole[:size]

    def _ended(self, pieces: list[bytes], reason: str) -> Exception:
        greeting = b"".join(pieces)
        if self._has_heard or not greeting:
            return ConnectionLost(reason)
        return NotHttp2(greeting)

    def _is_readable(self) -> bool:
        pending = getattr(self._socket, "pending", None)  # of TLS, bytes may wait inside
        if self._received or (pending is not None and pending()):
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _left_s(self) -> float:
        return max(self._ends_at - time.monotonic(), 0.001)


class _Call:
    """What has come of the answer to one call."""

    def __init__(self) -> None:
        self._headers: list[tuple[str, str]] = []
        self._block = b""
        self._body = bytearray()
        self._ends_with_block = False
        self.is_over = False

    def take(self, piece: bytes, *, is_last: bool) -> None:
        self._body += piece
        self.is_over |= is_last

    def take_headers(self, piece: bytes, flags: int) -> None:
        self._block += piece
        self._ends_with_block |= bool(flags & END_STREAM)
        if flags & END_HEADERS:
            try:
                self._headers += decoded(self._block)
            except BadHeaders as error:
                raise ConnectionLost(str(error)) from error
            self._block = b""
            self.is_over |= self._ends_with_block

    def answer(self) -> Answer:
        """Return the answer; raise ConnectionLost if it is none of gRPC."""
        metadata = dict(self._headers)
        status = metadata.get("grpc-status", "")
        if not status.isdecimal():
            http = metadata.get(":status", "nothing")
            raise ConnectionLost(f"what answers is no node: it said {http} and no status of gRPC")
        body = bytes(self._body)
        if status == "0" and (len(body) < _PREFIX.size or body[0]):
            raise ConnectionLost("an answer came that was compressed, or cut off")
        details = unquote(metadata.get("grpc-message", ""))
        return Answer(int(status), details, metadata, body[_PREFIX.size :])


def _secured(plain: socket.socket, tls: "Callable[[], ssl.SSLContext]", host: str) -> socket.socket:
    try:
        secured = tls().wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
    if secured.selected_alpn_protocol() != ALPN:
        secured.close()
        raise OSError("missing selected ALPN property")
    return secured


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + body


def _window_update(size: int) -> bytes:
    return _frame(WINDOW_UPDATE, 0, 0, size.to_bytes(4))


def _headers(stream: int, block: bytes) -> bytes:
    pieces = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)]
    last = len(pieces) - 1
    return b"".join(
        _frame(CONTINUATION if at else HEADERS, END_HEADERS * (at == last), stream, piece)
        for at, piece in enumerate(pieces)
    )


def _unpadded(flags: int, body: bytes) -> bytes:
    return body[1 : len(body) - body[0]] if flags & PADDED and body else body


def _block(kind: int, flags: int, body: bytes) -> bytes:
    if kind == CONTINUATION:
        return body
    body = _unpadded(flags, body)
    return body[5:] if flags & PRIORITY else body
