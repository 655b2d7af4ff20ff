"""When a message that failed is tried again.

Exponential backoff with jitter: the k-th failure waits `retry_delay * 2^(k-1)`, at most
`retry_delay_max`, and up to `retry_jitter_percent` more, so that messages which failed together do
not come back together. The jitter is a hash of (offset, failures): no dice are needed, and a run
can be repeated. A range that failed as one keeps one delay and stays a range.
"""

from waterclock.model.sections import DeliveryConfig

_MASK = (1 << 64) - 1


def retry_delay_ms(config: DeliveryConfig, *, offset: int, failed: int) -> int:
    """Return how long to wait after so many failures."""
    assert failed >= 0
    doublings = min(max(failed - 1, 0), 32)
    delay_ms = min(config.retry_delay_ms << doublings, config.retry_delay_ms_max)
    spread_ms = delay_ms * config.retry_jitter_percent // 100
    return delay_ms + _mixed(offset << 8 | failed) % (spread_ms + 1)


def _mixed(number: int) -> int:
    """Return 64 well-mixed bits (SplitMix64; Steele, Lea, Flood 2014)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _MASK
    return number ^ number >> 31
