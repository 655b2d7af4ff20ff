"""What came of the demo, counted from what was sent and what is in the streams."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Outcome:
    """The sum at the end."""

    source_kind: str
    sent: int
    """Messages that Redis has taken from the devices."""
    written: int
    """Different messages in the output stream."""
    dead: int
    spoiled: int
    """Messages that belong in the dead stream."""
    twice: int
    """Entries too many in the output stream."""
    seconds: float
    redelivered: int = 0
    announced_lost: int = 0
    """Messages that dispatchers say they may have missed; with the stream source there are none."""
    gaps: int = 0
    """Times that nobody knows how many were missed."""
    takeovers_s: list[float] = field(default_factory=list)
    """From each kill of a leader to the first entry handed out by the next."""
    killed: dict[str, int] = field(default_factory=dict)
    epochs: int = 0

    @property
    def lost(self) -> int:
        """Messages that are nowhere."""
        return self.sent - self.written - self.dead

    def broken(self) -> list[str]:
        """Return the guarantees that were not kept."""
        may_lose = self.source_kind == "pubsub"
        allowed = self.announced_lost if may_lose else 0
        if may_lose and self.gaps:
            allowed = max(allowed, self.lost)
        checks: Iterable[tuple[bool, str]] = (
            (self.lost > allowed, f"{self.lost} messages were lost, {allowed} of them announced"),
            (self.lost < 0, f"{-self.lost} messages are there that nobody sent"),
            (self.twice > 0, f"{self.twice} entries are in the stream twice"),
            (self.dead > self.spoiled, f"{self.dead - self.spoiled} good messages are dead"),
        )
        return [text for is_broken, text in checks if is_broken]

    def plain(self) -> dict[str, object]:
        """Return all of it for machines."""
        broken = self.broken()
        return {"ok": not broken, "broken": broken, "lost": self.lost, **asdict(self)}
