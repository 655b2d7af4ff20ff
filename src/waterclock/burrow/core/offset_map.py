"""What is finished beyond the committed offset, as text for the metadata of a commit.

Brokers keep a short text with each committed offset: 4,096 UTF-16 units in Kafka. With the finished
runs in it, a restart redoes the gaps and not everything since the first of them.

    text   "W1" + base-32768, or "w1" + base64
    bytes  kind u8 | CRC-32 of (base u64, kind, body) | body
    kinds  1 runs   varint pairs (gap, length), from the base on
           2 runs   the same, deflated
           3 bits   bit i: offset base + i is finished; most significant first
           4 bits   the same, deflated

The smallest of the four is taken. Base-32768 puts 15 bits in a character: U+3400..U+9FFF and
U+AC00..U+BFFF are characters of one UTF-16 unit that no normal form changes; the bits end with a 1
and zeros to fill. Deflate is used and not zstd because every Python reads it, and a map that the
next owner cannot read is lost.

The base is under the checksum: a map is only ever read against the offset it was made for. What is
not ours, damaged, or absurd counts as no map at all, which means work done twice and never work
left out; offsets at or above the end of the log are not believed. If a map does not fit, its lowest
runs that do are kept, for the same reason.
"""

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from waterclock.burrow.core.config import MapText
from waterclock.burrow.core.records import Run

RAW_BYTES_MAX = 1 << 16
"""A body is never larger, inflated: no text makes us work for long."""
TEXT_UNITS_MAX = 1 << 14
"""Longer metadata is not read: plain bodies are bounded by it."""

_PREFIX = {"base32768": "W1", "base64": "w1"}
_RUNS, _RUNS_DEFLATED, _BITS, _BITS_DEFLATED = 1, 2, 3, 4
_LOW, _LOW_COUNT, _HIGH = 0x3400, 0xA000 - 0x3400, 0xAC00
_HEADER_BYTES = 5
_WEIGHTS = (1 << np.arange(14, -1, -1)).astype(np.int64)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncodedMap:
    """A map as text, and how much of what is finished it holds."""

    text: str
    runs: tuple[Run, ...]
    """All runs, also those that did not fit."""
    is_whole: bool
    usage: float
    """The room the whole map needs, as a share of what there is; 0 if there is no map at all."""


class OffsetMaps:
    """Writes and reads maps within the limits of a broker."""

    __slots__ = ("text", "units_max")

    def __init__(self, *, units_max: int, text: MapText) -> None:
        self.units_max = units_max
        self.text = text

    @property
    def bytes_max(self) -> int:
        """How many bytes fit."""
        units = self.units_max - len(_PREFIX[self.text])
        return (units * 15 - 1) // 8 if self.text == "base32768" else units * 3 // 4

    def shrink(self) -> None:
        """Be content with half the room: the broker said it was too much."""
        self.units_max //= 2

    def encode(self, base: int, runs: Sequence[Run]) -> EncodedMap:
        """Return the map of runs, which are ordered and all lie beyond the base."""
        whole = tuple(runs)
        room = self.bytes_max
        if not whole or room < _HEADER_BYTES + 2:
            return EncodedMap("", whole, is_whole=not whole, usage=0.0)
        bounds = np.array(whole, np.int64).ravel() - base
        data, needed = _smallest(base, bounds)
        usage = needed / room
        if data is not None and len(data) <= room:
            return EncodedMap(self._to_text(data), whole, is_whole=True, usage=usage)
        kept = _lowest_that_fit(base, bounds, room)
        text = "" if kept is None else self._to_text(kept)
        return EncodedMap(text, whole, is_whole=False, usage=max(usage, 1.0))

    def decode(self, text: str, *, base: int, log_end: int | None) -> list[Run]:
        """Return the runs of a map below the end of the log; none if it is not one of ours."""
        if log_end is None or not 2 < len(text) <= TEXT_UNITS_MAX:
            return []
        data = _from_text(text)
        if data is None or len(data) <= _HEADER_BYTES:
            return []
        kind, body = data[0], data[_HEADER_BYTES:]
        if data[:_HEADER_BYTES] != _header(base, kind, body):
            return []
        raw = _inflated(body) if kind in (_RUNS_DEFLATED, _BITS_DEFLATED) else body
        if raw is None:
            return []
        bounds = _bounds_of_runs(raw) if kind in (_RUNS, _RUNS_DEFLATED) else _bounds_of_bits(raw)
        if bounds is None or kind not in (_RUNS, _RUNS_DEFLATED, _BITS, _BITS_DEFLATED):
            return []
        pairs = zip(bounds[::2], bounds[1::2], strict=True)
        return [
            (base + start, min(base + end, log_end))
            for start, end in pairs
            if base + start < log_end
        ]

    def _to_text(self, data: bytes) -> str:
        prefix = _PREFIX[self.text]
        if self.text == "base64":
            return prefix + base64.b64encode(data).decode().rstrip("=")
        bits = np.unpackbits(np.frombuffer(data, np.uint8))
        padded = np.zeros(len(bits) // 15 * 15 + 15, np.int64)
        padded[: len(bits)] = bits
        padded[len(bits)] = 1
        values = padded.reshape(-1, 15) @ _WEIGHTS
        characters = np.where(values < _LOW_COUNT, values + _LOW, values - _LOW_COUNT + _HIGH)
        return prefix + characters.astype("<u2").tobytes().decode("utf-16-le")


def _from_text(text: str) -> bytes | None:
    """Return the bytes in a text of either kind: the next owner may have other settings."""
    prefix, body = text[:2], text[2:]
    if prefix == _PREFIX["base64"]:
        try:
            return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
        except (binascii.Error, ValueError):
            return None
    if prefix != _PREFIX["base32768"]:
        return None
    characters = np.array([ord(character) for character in body], np.int64)
    is_low = (characters >= _LOW) & (characters < _LOW + _LOW_COUNT)
    is_high = (characters >= _HIGH) & (characters < _HIGH + (1 << 15) - _LOW_COUNT)
    if not (is_low | is_high).all():
        return None
    values = np.where(is_low, characters - _LOW, characters - _HIGH + _LOW_COUNT)
    bits = (values[:, None] >> np.arange(14, -1, -1) & 1).ravel()
    ones = np.flatnonzero(bits)
    if not len(ones) or ones[-1] % 8:
        return None
    return np.packbits(bits[: ones[-1]]).tobytes()


def _smallest(base: int, bounds: Ints) -> tuple[bytes | None, int]:
    """Return the smallest form, and its size; None with a guess if all are beyond our limit."""
    forms: list[tuple[int, bytes]] = []
    numbers = np.diff(bounds, prepend=0)
    if len(numbers) <= RAW_BYTES_MAX:
        raw = _varints_of(numbers)
        if len(raw) <= RAW_BYTES_MAX:
            forms += [(_RUNS, raw), (_RUNS_DEFLATED, _deflated(raw))]
    span = int(bounds[-1])
    if span <= RAW_BYTES_MAX * 8:
        steps = np.zeros(span + 1, np.int8)
        steps[bounds[::2]] = 1
        steps[bounds[1::2]] = -1
        raw = np.packbits(np.cumsum(steps[:-1], dtype=np.int8).view(np.uint8)).tobytes()
        forms += [(_BITS, raw), (_BITS_DEFLATED, _deflated(raw))]
    if not forms:
        return None, len(numbers)
    kind, body = min(forms, key=lambda form: len(form[1]))
    return _header(base, kind, body) + body, _HEADER_BYTES + len(body)


def _lowest_that_fit(base: int, bounds: Ints, room: int) -> bytes | None:
    """Return a map of as many of the lowest runs as fit, or nearly."""
    best: bytes | None = None
    low, high = 0, len(bounds) // 2
    # Sizes do not quite grow with the runs (deflate), so this finds a map that fits, and not
    # always the largest one.
    while low < high:
        count = (low + high + 1) // 2
        data, needed = _smallest(base, bounds[: 2 * count])
        if data is not None and needed <= room:
            best, low = data, count
        else:
            high = count - 1
    return best


def _header(base: int, kind: int, body: bytes) -> bytes:
    check = zlib.crc32(body, zlib.crc32(bytes([kind]), zlib.crc32(base.to_bytes(8))))
    return bytes([kind]) + check.to_bytes(4)


def _deflated(raw: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(raw) + deflate.flush()


def _inflated(body: bytes) -> bytes | None:
    inflate = zlib.decompressobj(-15)
    try:
        raw = inflate.decompress(body, RAW_BYTES_MAX + 1)
    except zlib.error:
        return None
    return raw if inflate.eof and not inflate.unused_data else None


def _varints_of(numbers: Ints) -> bytes:
    shifts = np.arange(0, 63, 7)
    groups = numbers[:, None] >> shifts
    is_used = (groups > 0) | (shifts == 0)
    groups = (groups & 127) | np.where(groups >> 7 > 0, 128, 0)
    return bytes(groups.astype(np.uint8)[is_used])


def _bounds_of_runs(raw: bytes) -> list[int] | None:
    bounds: list[int] = []
    at = number = shift = 0
    for byte in raw:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            at += number
            # Neither gap nor run is empty, and an offset has 63 bits.
            if not number or at >> 62:
                return None
            bounds.append(at)
            number = shift = 0
        elif shift > 56:
            return None
    return None if shift or len(bounds) % 2 else bounds


def _bounds_of_bits(raw: bytes) -> list[int] | None:
    bits = np.unpackbits(np.frombuffer(raw, np.uint8)).view(np.int8)
    if bits[0]:
        return None  # the base itself is not finished, or it would not be the base
    edges = np.flatnonzero(np.diff(bits, prepend=0, append=0))
    return [int(edge) for edge in edges]
