"""Settings of the core are checked in one place, and the error names the field."""

import pytest

from waterclock.burrow.core.config import EngineConfig
from waterclock.model.errors import BadConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("order", "keys"),
        ("on_failure", "drop"),
        ("map_text", "base85"),
        ("queue_max", 0),
        ("queue_max", 1.5),
        ("queue_max", True),
        ("queue_bytes_max", 0),
        ("commit_ms", -1),
        ("retry_jitter_percent", -1),
        ("max_retries", -1),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(BadConfig, match=f"configuration {field}: "):
        EngineConfig(**{field: value})


def test_the_least_that_is_allowed_is_allowed():
    EngineConfig(retry_jitter_percent=0, map_units_max=0, max_retries=0, queue_max=1)
