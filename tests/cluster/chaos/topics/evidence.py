"""What is kept of a round in which something was found, so that it can be explained afterwards.

    plan             what was to be done, and what was done to whom, when
    findings         what was found, and what was counted
    history          the events, as the checkers took them
    delivered        what members of groups were given, and when
    refusals         what clients were told instead of what they had asked for, and when
    stuck            what all nodes said of the topic and its groups when time was up
    *.log            of the nodes and of etcd: what they wrote during the round

Of a log the last `LOG_BYTES_MAX` are kept, and of one run of the program `ROUNDS_MAX` rounds at
most. A round in which nothing was found leaves nothing here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.cluster.chaos.topics.record import RoundRecord
from tests.cluster.history.events import dump
from tests.kit.verdict import Verdict

LOG_BYTES_MAX = 8 << 20
ROUNDS_MAX = 20


class Evidence:
    """Keeps rounds in a folder, which is made for the first of them. Call `begin` before each."""

    def __init__(self, folder: Path, logs: Sequence[Path]) -> None:
        self.folder = folder
        self._logs = logs
        self._sizes: Mapping[Path, int] = {}
        self._rounds = 0

    def begin(self) -> None:
        """Note how long the logs are: what is there already is of rounds before."""
        self._sizes = {log: log.stat().st_size if log.exists() else 0 for log in self._logs}

    def keep(self, record: RoundRecord, verdict: Verdict) -> Path | None:
        """Keep a round in which something was found; return where, or None if it is not kept."""
        if not verdict.findings or self._rounds >= ROUNDS_MAX:
            return None
        self._rounds += 1
        plan = record.plan
        folder = self.folder / f"{plan.theme}-{plan.seed}-{plan.number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan").write_text(_lines([plan, *record.performed]))
        (folder / "findings").write_text(
            f"{verdict.findings}\n\n{json.dumps(verdict.as_json(), indent=1)}\n"
        )
        (folder / "history").write_bytes(dump(record.events))
        (folder / "delivered").write_text(_rows(record.delivered))
        (folder / "refusals").write_text(_rows(record.refusals))
        (folder / "stuck").write_text(_lines(record.stuck))
        for log in self._logs:
            (folder / log.name).write_bytes(_since(log, self._sizes.get(log, 0)))
        return folder


def _lines(things: Iterable[object]) -> str:
    return "".join(f"{each}\n" for each in things)


def _rows(things: Iterable[tuple[object, ...]]) -> str:
    return _lines(" ".join(map(str, each)) for each in things)


def _since(log: Path, start: int) -> bytes:
    """Return what a log has from a place on, or the last of it if that is too much."""
    if not log.exists():
        return b""
    with log.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(start, end - LOG_BYTES_MAX))
        return file.read(LOG_BYTES_MAX)
