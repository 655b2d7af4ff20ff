"""The moment at which these tests take place."""

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000
