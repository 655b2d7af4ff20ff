"""An Arrow message opened for forgery: where its FlatBuffers metadata keeps what."""

import struct


class ArrowMessage:
    """The bytes of an encapsulated record batch; change `data`, then hand out `bytes(data)`."""

    def __init__(self, body: bytes | memoryview) -> None:
        self.data = bytearray(body)
        self.message = 8 + self.number("<I", 8)
        self.batch = self.follow(self.field(self.message, 2))
        self.body = 8 + self.number("<i", 4)

    def number(self, kind: str, at: int) -> int:
        """Return the number at a place."""
        return int(struct.unpack_from(kind, self.data, at)[0])

    def put(self, kind: str, at: int, value: int) -> None:
        """Forge the number at a place."""
        struct.pack_into(kind, self.data, at, value)

    def entry(self, table: int, number: int) -> int:
        """Return where a table says how far off a field is; forge a 0 to have it absent."""
        return table - self.number("<i", table) + 4 + 2 * number

    def field(self, table: int, number: int) -> int:
        """Return where a field lies."""
        return table + self.number("<H", self.entry(table, number))

    def follow(self, at: int) -> int:
        """Return where something begins that is referred to at a place."""
        return at + self.number("<I", at)

    def nodes(self) -> list[int]:
        """Return where each column's length is, null count behind it; children after parents."""
        return self._structs(1)

    def buffers(self) -> list[int]:
        """Return where each buffer's offset is, length behind it."""
        return self._structs(2)

    def _structs(self, number: int) -> list[int]:
        vector = self.follow(self.field(self.batch, number))
        return [vector + 4 + 16 * index for index in range(self.number("<I", vector))]
