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
        (planted.buries_again, scripts.INLET_BURY),
    ],
)
def test_a_planted_script_differs_from_ours(monkeypatch, plant, script):
    monkeypatch.setattr(script, "text", script.text)
    monkeypatch.setattr(script, "digest", script.digest)
    monkeypatch.setattr(StreamSource, "bury", StreamSource.bury)
    before = script.digest

    plant()

    assert script.digest != before
