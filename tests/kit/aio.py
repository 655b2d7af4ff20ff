"""A folder whose fsyncs the kernel runs.

Where tests write otherwise is memory on many machines, or a layer of an image; the checkout seldom
is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from waterclock.storage.folders.aio import aio_at

CHECKOUT = Path(__file__).parents[2] / ".venv"


@contextmanager
def folder_with_aio(tmp_path: Path) -> Iterator[Path]:
    """Have a folder while inside; where the kernel runs no fsyncs for us, the test is skipped."""
    for place in (tmp_path, CHECKOUT):
        if (found := aio_at(place)) is not None:
            found.close()
            place.mkdir(exist_ok=True)
            with TemporaryDirectory(dir=place) as folder:
                yield Path(folder)
            return
    pytest.skip("no AIO: this kernel, sandbox or file system has none for us")
