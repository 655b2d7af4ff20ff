"""The other processes of this machine: all that were started are ready, or who is not."""

from collections.abc import Callable
from typing import Final

from waterclock.model.ids import Millis
from waterclock.node.problems import PROCESS_AWAY, HealthProblem, problem_named
from waterclock.server.cluster.membership import Membership

STEM: Final = "process-"


def process_name(number: int) -> str:
    """Return what a process is called among the others, from 1 on. It is kept for life."""
    return f"{STEM}{number}"


class Neighbours:
    """Tells whether all processes are there. Partitions of one that is not cannot be asked for."""

    def __init__(self, count: int, now_ms: Callable[[], Millis]) -> None:
        self.names = tuple(map(process_name, range(1, count + 1)))
        self.membership: Membership | None = None
        """Who is there, once this process has joined."""
        self._now_ms = now_ms
        self._since_ms: Millis | None = None

    def __repr__(self) -> str:
        return f"<Neighbours {', '.join(self.names)}>"

    def problems(self) -> list[HealthProblem]:
        """Return what people have to know: who is away, and since when that was seen."""
        members = self.membership
        away = [] if members is None else [name for name in self.names if name not in members]
        if not away:
            self._since_ms = None
            return []
        self._since_ms = self._now_ms() if self._since_ms is None else self._since_ms
        verb = "is" if len(away) == 1 else "are"
        detail = f"{', '.join(away)} {verb} away, of {len(self.names)} processes"
        return [problem_named(PROCESS_AWAY, detail, self._since_ms)]
