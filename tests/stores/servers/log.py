"""Our own log needs a folder only; one process has it at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stores.backend import Backend, numbered


@contextmanager
def running(folder: Path) -> Iterator[Backend]:
    """Give folders in a folder."""
    urls = numbered(f"log://{folder}/streams-{{}}")
    yield Backend(name="log", fresh_url=lambda: next(urls), is_shared=False, batch=20_000)
