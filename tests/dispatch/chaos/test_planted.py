"""The plants still fit what they are planted in."""

import pytest

from tests.dispatch.chaos import planted
from waterclock.dispatch.redis import scripts
from waterclock.dispatch.sources.stream import StreamSource


@pytest.mark.parametrize(
    ("plant", "script"),
    [
        (planted.no_fence, scripts.WRITE),
        (planted.no_dedup, scripts.WRITE),
        (planted.writes_dead_letters_again, scripts.STREAM_DEAD_LETTER),
    ],
)
def test_a_planted_script_differs_from_ours(monkeypatch, plant, script):
    monkeypatch.setattr(script, "text", script.text)
    monkeypatch.setattr(script, "digest", script.digest)
    monkeypatch.setattr(StreamSource, "write_dead_letters", StreamSource.write_dead_letters)
    before = script.digest

    plant()

    assert script.digest != before
