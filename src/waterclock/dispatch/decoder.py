"""Frames out of the bytes of a connection, as they come: in pieces, several at once, or hostile.

A decoder knows which commands its side accepts and how long each may be, so it refuses at the
header, before memory is spent.
"""

from collections.abc import Iterable

from waterclock.dispatch.frames import HEADER, KINDS, VERSION, BadFrame, Frame


class Decoder:
    """Turns what a connection brought into frames; holds at most one unfinished frame.

    `commands` are what this side accepts: LEADER_READS or WORKER_READS.
    """

    def __init__(self, commands: Iterable[int]) -> None:
        self.admit(commands)
        self._rest = bytearray()
        self._problem: str | None = None

    def __repr__(self) -> str:
        return f"<Decoder {len(self._rest)} bytes wait>"

    def admit(self, commands: Iterable[int]) -> None:
        """Accept these from now on."""
        self._kinds = {command: KINDS[command] for command in commands}

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that `data` completes; raise BadFrame, from then on always."""
        if self._problem is not None:
            raise BadFrame(self._problem)
        frames: list[Frame] = []
        rest = self._rest
        source: bytes | bytearray
        if rest:
            rest += data
            source = rest
        else:
            source = bytes(data)
        try:
            taken = self._read(source, frames)
        except BadFrame as error:
            self._problem = error.reason
            rest.clear()
            raise BadFrame(error.reason, frames) from None
        if source is rest:
            del rest[:taken]
        else:
            rest += source[taken:]
        return frames

    def _read(self, source: bytes | bytearray, frames: list[Frame]) -> int:
        """Append the whole frames of `source`; return how many bytes they took."""
        start, size = 0, len(source)
        while start < size:
            if source[start] != VERSION:
                raise BadFrame(f"version {source[start]}, this is version {VERSION}")
            if size - start < HEADER.size:
                break
            _, command, length = HEADER.unpack_from(source, start)
            kind = self._kinds.get(command)
            if kind is None:
                raise BadFrame(f"command {command} is not for this side")
            if not kind.least <= length <= kind.most:
                raise BadFrame(f"command {command} with a payload of {length} bytes")
            begin = start + HEADER.size
            start_next = begin + length
            if start_next > size:
                break
            frames.append(kind.read(bytes(source[begin:start_next])))
            start = start_next
        return start
