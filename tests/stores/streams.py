"""Short ways to fill and to read streams in tests."""

from waterclock.stores.base import Record, StoredMessage, StreamStore

NOW_MS = 1_800_000_000_000


def numbered_records(
    count: int, *, start: int = 0, prefix: str = "", expires_ms: int | None = None
) -> list[Record]:
    """Give records with the ids 0, 1, 2 ... and bodies that say the same."""
    ids = [f"{prefix}{number}" for number in range(start, start + count)]
    return [Record(message_id, message_id.encode(), expires_ms) for message_id in ids]


async def read_all(
    store: StreamStore, stream: str, *, now_ms: int = NOW_MS, limit: int = 1_000
) -> list[StoredMessage]:
    """Read a stream page by page, to its end."""
    found: list[StoredMessage] = []
    while True:
        after = found[-1].position if found else 0
        page = await store.read(stream, after=after, limit=limit, now_ms=now_ms)
        if not page.messages:
            return found
        found += page.messages


async def ids_of(store: StreamStore, stream: str) -> list[str]:
    """Give the ids of a stream."""
    return [message.message_id for message in await read_all(store, stream)]
