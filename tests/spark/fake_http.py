"""A node that misbehaves on purpose: answers said beforehand, one for each request."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HANG_UP = b""
SILENCE = None


def answer(
    body: bytes, *, status: str = "200 OK", headers: str = "", length: int | None = None
) -> bytes:
    """Return an answer; with another `length` than it has it lies."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{headers}\r\n".encode() + body


def frames(
    body: bytes,
    next_offset: int,
    *,
    length: int | None = None,
    end: int = 1_000,
    retained: int = 0,
) -> bytes:
    """Return an answer with frames."""
    headers = (
        f"Waterclock-Next-Offset: {next_offset}\r\nWaterclock-Start-Offset: 0\r\n"
        f"Waterclock-End-Offset: {end}\r\nWaterclock-Retained-Offset: {retained}\r\n"
    )
    return answer(body, headers=headers, length=length)


class FakeHttp:
    """Serves one connection after the other; `asked` has the paths."""

    def __init__(self, answers: list[bytes | None], tls: ssl.SSLContext | None = None) -> None:
        self._answers = answers
        self._tls = tls
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if tls is None else "https"
        self.address = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End: who is connected is hung up on."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            try:
                line = line if self._tls is None else self._tls.wrap_socket(line, server_side=True)
            except OSError:  # it did not shake hands
                line.close()
                continue
            with line, line.makefile("rb") as asked:
                self._converse(line, asked)

    def _converse(self, line: socket.socket, asked: Iterator[bytes]) -> None:
        while (request := next(asked, b"")).strip():
            self.asked.append(request.split()[1].decode())
            while (head := next(asked, b"")).strip():
                self.heads.append(head.strip())
            said = self._answers.pop(0) if self._answers else HANG_UP
            if said is SILENCE:
                next(asked, b"")  # until the other side hangs up
                return
            line.sendall(said)
            size = int(said.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or -1)
            if len(said.partition(b"\r\n\r\n")[2]) != size:
                return


@contextmanager
def faking(*answers: bytes | None, tls: ssl.SSLContext | None = None) -> Iterator[FakeHttp]:
    """Run one."""
    fake = FakeHttp(list(answers), tls)
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()
