"""The rows of dead letters: what they say, and how people see them.

Key and value are as they were; what happened stands in headers (`wc-dlq-*`) beside the original
ones. Two things are moved into headers, or the dead letter would not lie there to be found: when
the message was due, and until when it was of use.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from waterclock.log.batch import Batch
from waterclock.log.expiry import HEADER as EXPIRES
from waterclock.log.schema import HEADERS, MESSAGES, binaries, encode, maps
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.views import DeadLetter, Position

PREFIX = "wc-dlq-"
REDRIVEN = "wc-redriven"
ID_BYTES_MAX = 160
"""A longer id is replaced by its hash: ids are stored, hashed and limited."""

Pairs = list[tuple[str, bytes]]


def dead_headers(
    rows: pa.RecordBatch, offsets: Sequence[int], facts: Mapping[str, object]
) -> Iterator[Pairs]:
    """Yield the headers of dead letters."""
    reasons = [(PREFIX + name, str(fact).encode()) for name, fact in facts.items()]
    ids, dues = rows.column("message_id").to_pylist(), rows.column("due_ms").to_pylist()
    headers = rows.column("headers").to_pylist()
    for offset, id_, due_ms, pairs in zip(offsets, ids, dues, headers, strict=True):
        made = [(PREFIX + "offset", b"%d" % offset), (PREFIX + "id", id_)]
        if due_ms is not None:
            made.append((PREFIX + "due-ms", b"%d" % due_ms))
        kept = []
        for name, value in pairs or ():
            if name == EXPIRES:
                made.append((PREFIX + "expires-ms", value))
            elif not name.startswith(PREFIX):  # only we say what these say
                kept.append((name, value))
        yield kept + reasons + made


def batch_of(rows: pa.RecordBatch, ids: Sequence[bytes], headers: Sequence[Pairs]) -> Batch:
    """Return rows under other ids and headers, due at once.

    They were within the limits when they came. They may not be now, and must be taken all the same.
    """
    columns = [
        binaries(ids),
        rows.column("key"),
        rows.column("value"),
        maps(headers, HEADERS),
        pa.nulls(len(rows), pa.int64()),
    ]
    made = pa.record_batch(columns, schema=MESSAGES)
    return Batch(encode(made), made, None)


def short_id(id_: bytes) -> bytes:
    """Return an id, or its hash if it is long."""
    if len(id_) <= ID_BYTES_MAX:
        return id_
    return b"wc-" + hashlib.blake2b(id_, digest_size=24).hexdigest().encode()


def split_headers(pairs: Pairs | None) -> tuple[dict[str, bytes], Pairs]:
    """Return what headers say of a death, and the others."""
    facts = {n.removeprefix(PREFIX): v for n, v in pairs or () if n.startswith(PREFIX)}
    return facts, [(name, value) for name, value in pairs or () if not name.startswith(PREFIX)]


def dead_letters_of(
    rows: pa.RecordBatch, partition: int, offsets: Sequence[int]
) -> Iterator[DeadLetter]:
    """Yield dead letters as people see them; also what somebody published there by hand."""
    columns = (rows.column(name).to_pylist() for name in MESSAGES.names)
    for offset, id_, key, value, pairs, due_ms in zip(offsets, *columns, strict=True):
        facts, kept = split_headers(pairs)
        if "expires-ms" in facts:
            kept.append((EXPIRES, facts["expires-ms"]))
        was_due_ms = Millis(_number(facts, "due-ms")) if "due-ms" in facts else due_ms
        message = Message(
            value,
            key=key,
            message_id=facts.get("id", id_),
            headers=dict(kept) if kept else None,
            due_ms=was_due_ms,
        )
        yield DeadLetter(
            message=message,
            position=Position(partition, offset),
            group=facts.get("group", b"").decode(errors="replace"),
            reason=facts.get("reason", b"unknown").decode(errors="replace"),
            attempts=_number(facts, "attempts"),
            origin=Position(_number(facts, "partition"), _number(facts, "offset")),
            dead_lettered_ms=_number(facts, "dead-lettered-ms"),
        )


def _number(facts: Mapping[str, bytes], name: str) -> int:
    text = facts.get(name, b"0")
    return int(text) if text.isdigit() and len(text) < 19 else 0
