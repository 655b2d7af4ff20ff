"""Texts of the formats that no pattern tells, for schemathesis to make requests from."""

import schemathesis
from hypothesis import strategies as st

DURATIONS = st.sampled_from(["0s", "90s", "1h30m", "250ms", "7d", "36524d"])
INTERVALS = st.sampled_from(["1s", "90s", "1h30m", "365d"])
JITTERS = st.sampled_from(["0s", "250ms", "30s", "23h"])
TIMES = st.sampled_from(
    ["1970-01-01T00:00:00Z", "2026-11-15T10:00:00Z", "2110-02-28T23:59:59.5+01:00"]
)
CRONS = st.sampled_from(["0 9 * * MON", "*/5 * * * *", "30 0 9 1,15 * *", "@daily", "0 0 L * *"])
TOKENS = st.just("")
"""Others come in answers only."""

for name, strategy in {
    "duration": DURATIONS,
    "interval": INTERVALS,
    "jitter": JITTERS,
    "time": TIMES,
    "cron": CRONS,
    "rule": CRONS | INTERVALS,
    "token": TOKENS,
}.items():
    schemathesis.openapi.format(f"waterclock-{name}", strategy)
