"""Calls of gRPC on their way to the node that answers for them, and their answers.

    request     count of partitions u16, these u32 each, length of the method u8, the method, items
    answer      items; the last one is END

    item        kind u8, length u32, then so many bytes
    MESSAGE     a request or an answer of the method, as gRPC has it
    END         nothing if all went well, else a failure in JSON
    STOP        empty, in requests: the node in front stops. A stream ends soon, in good order;
                told a second time, at once
    RIGHTS      of who asks, in JSON, before the first request: what it is about stands in records
                that the node in front may not have yet

The method is named as in `Broker/Fetch`. The partitions are those that the node is asked to answer
for, where a topic has several leaders; empty: whatever the request names. A call goes one hop: who
is asked answers, or says that it does not lead (`NotLeader`), and asks nobody else.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from waterclock.model import errors as tree
from waterclock.model.errors import BadInput, WaterclockError

CALL: Final = 5
"""The method of the peer link."""
MESSAGE: Final = 0
END: Final = 1
STOP: Final = 2
RIGHTS: Final = 3
ITEM_BYTES_MAX: Final = 256 << 20
METHOD_BYTES_MAX: Final = 255
PARTITIONS_MAX: Final = 1_024

_ITEM = Struct(">BI")
_COUNT = Struct(">H")
_KINDS: Final = (MESSAGE, END, STOP, RIGHTS)
_NAMED: Final[dict[str, type[WaterclockError]]] = {
    name: found
    for name, found in vars(tree).items()
    if isinstance(found, type) and issubclass(found, WaterclockError)
}


class BadCall(BadInput):
    """What another node sent is no call, or no answer."""


class UnforeseenElsewhere(tree.NodeFailed):
    """A bug, in the node that was asked: its log has it under the id, and this node goes on."""

    def __init__(self, text: str, error_id: str) -> None:
        super().__init__(text)
        self.error_id = error_id


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a call failed, so that it can be raised again."""

    text: str
    error: str = ""
    """The class in the tree of errors; empty: a bug."""
    facts: dict[str, int | str] = {}

    @classmethod
    def of(cls, error: WaterclockError) -> "Failure":
        """Return what to say of an error of ours."""
        if isinstance(error, UnforeseenElsewhere):
            return cls(str(error), facts={"error_id": error.error_id})
        kind = next(each for each in type(error).__mro__ if _NAMED.get(each.__name__) is each)
        facts = {k: v for k, v in vars(error).items() if isinstance(v, int | str)}
        return cls(str(error), kind.__name__, facts)

    def exception(self) -> Exception:
        """Return it as it was raised; an error of a later release is its nearest known kin, and a
        disk that failed there is `Fenced` here."""
        if not self.error:
            return UnforeseenElsewhere(self.text, str(self.facts.get("error_id", "")))
        kind = _NAMED.get(self.error, tree.Unavailable)
        if issubclass(kind, tree.StorageFailed):
            # That node ends, and others lead in its stead. Raised as it is, it would end this one.
            kind = tree.Fenced
        error = kind.__new__(kind)
        # Without its constructor: the words are put together already.
        Exception.__init__(error, self.text)
        vars(error).update(self.facts)
        return error


class CallHead(NamedTuple):
    """What stands before the items of a request."""

    method: str
    partitions: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return the bytes of it."""
        method, count = self.method.encode(), len(self.partitions)
        assert len(method) <= METHOD_BYTES_MAX, method
        assert count <= PARTITIONS_MAX, count
        numbers = Struct(f">{count}I").pack(*self.partitions)
        return b"".join((_COUNT.pack(count), numbers, bytes((len(method),)), method))

    @classmethod
    def decode(cls, data: bytes) -> tuple["CallHead", int]:
        """Return it, and where the items begin."""
        if len(data) < _COUNT.size:
            raise BadCall("a call has no head")
        (count,) = _COUNT.unpack_from(data)
        at = _COUNT.size + 4 * count
        if count > PARTITIONS_MAX or at >= len(data):
            raise BadCall("the head of a call is cut off, or too long")
        partitions = Struct(f">{count}I").unpack_from(data, _COUNT.size)
        end = at + 1 + data[at]
        if end > len(data):
            raise BadCall("the method of a call is cut off")
        try:
            method = data[at + 1 : end].decode()
        except UnicodeDecodeError:
            raise BadCall("the method of a call is not UTF-8") from None
        return cls(method, partitions), end


class Item(NamedTuple):
    """One thing said in a call."""

    kind: int
    body: bytes

    @property
    def failure(self) -> Failure | None:
        """What an END says; None if all went well."""
        assert self.kind == END
        if not self.body:
            return None
        try:
            return msgspec.json.decode(self.body, type=Failure)
        except msgspec.MsgspecError as error:
            raise BadCall(f"an END that is no failure: {error}") from None


def message(body: bytes) -> bytes:
    """Return the item of a message."""
    return _ITEM.pack(MESSAGE, len(body)) + body


def rights(texts: bytes) -> bytes:
    """Return the item that says what who asks may do; nothing for those who may do everything."""
    return _ITEM.pack(RIGHTS, len(texts)) + texts if texts else b""


def stop() -> bytes:
    """Return the item that says that the node in front stops."""
    return _ITEM.pack(STOP, 0)


def end(failure: Failure | None = None) -> bytes:
    """Return the item that is last."""
    return ended(b"" if failure is None else msgspec.json.encode(failure))


def ended(body: bytes) -> bytes:
    """Return the item that is last, with what it says."""
    return _ITEM.pack(END, len(body)) + body


class ItemDecoder:
    """Cuts what comes into items."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_between(self) -> bool:
        """Nothing of an item is waiting for its rest."""
        return not self._buffer

    @property
    def size_bytes(self) -> int:
        """What has come of an item that is not whole."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> Iterator[Item]:
        """Yield the items that are whole. Raises BadCall."""
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        try:
            while size - start >= _ITEM.size:
                kind, length = _ITEM.unpack_from(buffer, start)
                if kind not in _KINDS:
                    raise BadCall(f"items of kind {kind} are unknown")
                if length > ITEM_BYTES_MAX:
                    raise BadCall(f"an item of {length} bytes; {ITEM_BYTES_MAX} are allowed")
                whole = start + _ITEM.size + length
                if whole > size:
                    break
                body = bytes(memoryview(buffer)[start + _ITEM.size : whole])
                start = whole
                yield Item(kind, body)
        finally:
            del buffer[:start]
