"""Rounds, one after the other on shared servers, each judged as it ends."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.dispatch.chaos.conductor import PATIENCE_S, Conductor
from tests.dispatch.chaos.oracle import judge
from tests.dispatch.chaos.plan import Plan
from tests.dispatch.chaos.report import RoundResult
from tests.dispatch.chaos.stage import Stage
from tests.kit.fork_server import ForkServer
from tests.kit.network import Network

_CHAINED = ("direct cause of the following exception:", "another exception occurred:")
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Group|Stale|RedisAway)\b.*", re.MULTILINE)


class Rounds:
    """Plays rounds. Use it in a `with` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._played = 0

    def __enter__(self) -> "Rounds":
        self._network = self._stack.enter_context(Network())
        self._fork_server = self._stack.enter_context(ForkServer("tests.dispatch.chaos.program"))
        self._stage = self._stack.enter_context(Stage(self._folder / "redis", is_replicated=False))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def play(self, plan: Plan, *, plant: str = "", patience_s: float = PATIENCE_S) -> RoundResult:
        """Play one round. A failover uses its servers up, so such a round has its own."""
        self._played += 1
        folder = self._folder / f"{self._played}-{plan.source_kind}-{plan.number}"
        with ExitStack() as stack:
            stage = self._stage
            if plan.is_replicated:
                stage = stack.enter_context(Stage(folder / "redis", is_replicated=True))
            history = Conductor(
                plan, stage=stage, network=self._network, fork_server=self._fork_server,
                folder=folder, plant=plant, patience_s=patience_s,
            ).run()  # fmt: skip
        verdict = judge(history, errors=errors_in(folder / "programs.log"))
        return RoundResult(plan, verdict, history.seconds)


def errors_in(log: Path) -> Iterator[str]:
    """Return the last line of each traceback that somebody left, but for those that a worker tells
    of its handler: nobody of ours expects one."""
    text = log.read_text(errors="replace") if log.exists() else ""
    before, *parts = text.split("Traceback (most recent call last):")
    is_expected = False
    for part in parts:
        said = before.rstrip().rpartition("\n")[2]
        is_expected = "handler_failed " in said or (is_expected and said.endswith(_CHAINED))
        before = part
        if not is_expected:
            found = _ERROR.search(part)
            yield found[0][:200] if found else part.strip()[:200]
