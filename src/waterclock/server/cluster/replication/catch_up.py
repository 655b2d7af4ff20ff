"""How fast replicas that are far behind are brought up: a token bucket over all of them."""

from typing import Final

BURST_S: Final = 0.1


class CatchUp:
    """Bytes that may be sent to replicas that are behind; at most a tenth of a second ahead."""

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        self._rate = bytes_per_s
        self._free_at_s = now_s

    def __repr__(self) -> str:
        return f"<CatchUp {self._rate} bytes a second>"

    def spend(self, size: int, now_s: float) -> None:
        """Note that so much was sent."""
        self._free_at_s = max(self._free_at_s, now_s - BURST_S) + size / self._rate

    def wait_s(self, now_s: float) -> float:
        """Return how long the next one has to wait."""
        return max(0.0, self._free_at_s - now_s)
