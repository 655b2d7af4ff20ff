from pathlib import Path

import pytest

from tests.deploy.container import Image, build, why_not
from tests.deploy.fetching import fetched


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Return the image, made by the steps of its Dockerfile."""
    if reason := why_not():
        pytest.skip(reason)
    folder: Path = tmp_path_factory.mktemp("image")
    return fetched(lambda: build(folder))
