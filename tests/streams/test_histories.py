"""Short runs of random histories; `make sim` runs ten thousands."""

import os

import pytest

from tests.kit.examples import examples
from tests.streams.history import History

HISTORIES = int(os.environ.get("WATERCLOCK_HISTORIES") or examples(300))
SEED = int(os.environ.get("WATERCLOCK_SEED", "0"))
CHUNKS = 10


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_streams_do_what_the_model_says(chunk):
    for number in range(chunk, HISTORIES, CHUNKS):
        History(SEED + number).run(60)
