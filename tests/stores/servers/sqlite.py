"""SQLite needs a folder only."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stores.backend import Backend, numbered


@contextmanager
def running(folder: Path) -> Iterator[Backend]:
    """Give SQLite files in a folder."""
    urls = numbered(f"sqlite://{folder}/streams-{{}}.sqlite")
    yield Backend(name="sqlite", fresh_url=lambda: next(urls), batch=20_000)
