"""Something that is awaited: what, why, and for how long, said at once and then ever more rarely.

A program that waits in silence looks as if it worked, or as if it hung. So the first failure is
said at once, then again after 5, 10, 20 ... seconds, at least every ten minutes, and its end too.
This decides what to say; the caller logs it.
"""

AGAIN_S = 5.0
AGAIN_S_MAX = 600.0


class Waiting:
    """One thing that may be away, such as "Redis at localhost:6379"."""

    def __init__(self, what: str, *, ends: str = "") -> None:
        self._what = what
        self._ends = ends or f"{what} is there"
        self._since_s: float | None = None
        self._again_at_s = 0.0

    def __repr__(self) -> str:
        return f"<Waiting for {self._what}, {'yes' if self.is_waiting else 'no'}>"

    @property
    def is_waiting(self) -> bool:
        """Whether it was away at the last look."""
        return self._since_s is not None

    def away(self, reason: str, now_s: float) -> str | None:
        """Note that it is not there, at a time of a monotonic clock; return what to say of it."""
        if self._since_s is None:
            self._since_s = now_s
            self._again_at_s = now_s + AGAIN_S
            return f"waiting for {self._what}: {reason}"
        if now_s < self._again_at_s:
            return None
        # So that the whole wait doubles each time: 5 s, 10 s, 20 s so far.
        self._again_at_s = now_s + min(now_s - self._since_s, AGAIN_S_MAX)
        return f"waiting for {self._what}, {span_text(now_s - self._since_s)} so far: {reason}"

    def here(self, now_s: float) -> str | None:
        """Note that it is there; return what to say if it was awaited."""
        if self._since_s is None:
            return None
        waited_s, self._since_s = now_s - self._since_s, None
        return f"{self._ends}, after {span_text(waited_s)}"


def span_text(seconds: float) -> str:
    """Return about how long that is, in the words people use."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
