"""Sizes are told before anything is inflated, and told the same as Arrow then has them."""

import struct
from collections.abc import Callable
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.arrow_message import ArrowMessage
from tests.log.damage import mangled
from tests.log.frames import messages, sample
from waterclock.log.batch import WireSize, decode_untrusted, parse_batch, wire_size
from waterclock.log.schema import encode, from_messages
from waterclock.model.errors import BadBatch, LimitExceeded
from waterclock.model.limits import Limits
from waterclock.model.message import Message

MIB = 1 << 20
BATCHES = st.lists(messages(), max_size=6)
SAMPLES = [sample(n) for n in range(5)]


def decoded_bytes(rows: pa.RecordBatch) -> int:
    """Return the bytes of all buffers of a decoded batch."""
    buffers = [buffer for column in rows.columns for buffer in column.buffers()]
    return sum(buffer.size for buffer in buffers if buffer is not None)


def allocated_by(action: Callable[[], object]) -> int:
    """Return how many bytes Arrow allocates while it does something."""
    pool = pa.default_memory_pool()
    before = pool.total_bytes_allocated()
    action()
    return int(pool.total_bytes_allocated() - before)


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A few kilobytes that Arrow would inflate to 200 MB."""
    return bytes(encode(from_messages([Message(bytes(200 * MIB), message_id=b"boom")]), "zstd"))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@given(batch=BATCHES)
def test_a_compressed_batch_is_as_large_as_it_says(batch, compression):
    body = encode(from_messages(batch), compression)

    assert wire_size(body) == WireSize(len(batch), decoded_bytes(decode_untrusted(body)))


@given(batch=BATCHES)
def test_an_uncompressed_batch_is_as_large_as_what_follows_its_metadata(batch):
    body = encode(from_messages(batch))

    size = wire_size(body)

    assert size == WireSize(len(batch), len(body) - ArrowMessage(body).body)
    assert size.decoded_bytes >= decoded_bytes(decode_untrusted(body))


def test_a_buffer_left_uncompressed_among_compressed_ones_counts_as_it_lies():
    message = ArrowMessage(encode(from_messages(SAMPLES), "zstd"))
    plain = bytes(message.data)
    value = message.buffers()[8]
    at, length = message.number("<q", value), message.number("<q", value + 8)
    inflated = message.number("<q", message.body + at)

    message.put("<q", message.body + at, -1)

    assert wire_size(bytes(message.data)) == WireSize(
        5, wire_size(plain).decoded_bytes - inflated + length
    )


def test_a_bomb_is_measured_and_refused_without_being_inflated(bomb):
    def publish() -> None:
        with pytest.raises(LimitExceeded, match="batch bytes"):
            parse_batch(bomb, Limits(), now_ms=0)

    assert len(bomb) < MIB
    assert wire_size(bomb).decoded_bytes > 200 * MIB
    assert allocated_by(publish) < MIB
    assert allocated_by(lambda: decode_untrusted(bomb)) > 200 * MIB


def test_a_codec_hidden_in_custom_metadata_is_refused():
    """Arrow looks for it there in messages of version 4, where a size could not be told."""
    options = pa.ipc.IpcWriteOptions(
        compression="zstd", metadata_version=pa.ipc.MetadataVersion.V4, use_threads=False
    )
    sink = pa.BufferOutputStream()
    rows = from_messages([Message(bytes(MIB), message_id=b"boom")])
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows, custom_metadata={"ARROW:experimental_compression": "zstd"})
        end = sink.tell()
    stream = memoryview(sink.getvalue())
    schema_bytes = 8 + struct.unpack_from("<i", stream, 4)[0]
    message = ArrowMessage(stream[schema_bytes:end])
    message.put("<H", message.entry(message.batch, 3), 0)
    body = bytes(message.data)

    assert decoded_bytes(decode_untrusted(body)) > MIB > 100 * len(body)
    with pytest.raises(BadBatch, match="version 5"):
        wire_size(body)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_bytes_behind_the_batch_are_refused(compression):
    body = bytes(encode(from_messages(SAMPLES), compression))

    for junk in (b"\0", bytes(8), body):
        with pytest.raises(BadBatch, match="bytes behind"):
            wire_size(body + junk)
        with pytest.raises(BadBatch):
            parse_batch(body + junk, Limits(), now_ms=0)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_batch_cut_short_anywhere_is_refused(compression):
    body = bytes(encode(from_messages(SAMPLES), compression))

    for size in range(len(body)):
        with pytest.raises(BadBatch):
            wire_size(body[:size])


def test_an_arrow_message_of_another_kind_is_refused():
    schema = memoryview(from_messages([]).schema.serialize())

    with pytest.raises(BadBatch, match="not a record batch"):
        wire_size(schema)


@pytest.mark.parametrize("rows", [-1, -(2**63)])
def test_a_negative_number_of_rows_is_refused(rows):
    message = ArrowMessage(encode(from_messages(SAMPLES)))
    message.put("<q", message.field(message.batch, 0), rows)

    with pytest.raises(BadBatch, match="rows"):
        wire_size(bytes(message.data))


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**31, 2**62, 2**63 - 1])
def test_a_compressed_buffer_outside_the_batch_is_refused(offset):
    message = ArrowMessage(encode(from_messages(SAMPLES), "zstd"))
    message.put("<q", message.buffers()[1], offset)

    with pytest.raises(BadBatch):
        wire_size(bytes(message.data))


def test_lengths_that_would_add_up_to_less_than_nothing_are_refused():
    message = ArrowMessage(encode(from_messages(SAMPLES), "zstd"))
    message.put("<q", message.body + message.number("<q", message.buffers()[1]), -2)

    with pytest.raises(BadBatch, match="negative"):
        wire_size(bytes(message.data))


def test_more_buffers_than_any_batch_of_ours_has_are_refused():
    message = ArrowMessage(encode(from_messages(SAMPLES), "zstd"))
    message.put("<I", message.buffers()[0] - 4, 65)

    with pytest.raises(BadBatch, match="65 buffers"):
        wire_size(bytes(message.data))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    for body in (data, struct.pack("<Ii", 0xFFFFFFFF, len(data)) + data):
        with pytest.raises(BadBatch):
            wire_size(body)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_thousands_of_mangled_batches_are_measured_or_refused(compression):
    body = bytes(encode(from_messages(SAMPLES), compression))
    random = Random(f"wire size {compression}")
    measured = 0
    for _ in range(8_000):
        try:
            size = wire_size(mangled(body, random))
        except BadBatch:
            continue
        assert min(size) >= 0
        measured += 1

    assert measured > 1_000
