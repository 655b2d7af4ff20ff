"""Messages on their way out, with their values encrypted."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from waterclock.client.encryption import Keys
from waterclock.client.producer.checks import as_bytes
from waterclock.log.schema import MESSAGES, binaries
from waterclock.model.message import Message


def encrypted(messages: Sequence[Message], topic: str, keys: Keys) -> list[Message]:
    """Return messages of a topic, which were checked, with their values encrypted."""
    return [
        replace(message, value=keys.encrypt(topic, _bytes(message.key), _bytes(message.value)))
        for message in messages
    ]


def encrypted_rows(rows: pa.RecordBatch, topic: str, keys: Keys) -> pa.RecordBatch:
    """Return the rows of a topic with their values encrypted."""
    at = MESSAGES.get_field_index("value")
    plain, of_keys = rows.column(at).to_pylist(), rows.column("key").to_pylist()
    sealed = binaries(keys.encrypt_all(topic, of_keys, plain))
    return rows.set_column(at, MESSAGES.field(at), sealed)


def _bytes(value: bytes | None) -> bytes | None:
    return None if value is None else as_bytes("value", value)
