"""A consumer as a process: a pool on a group, which writes down what it does.

It is handed its settings as JSON, and ends well after SIGTERM. A bug can be planted in it.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tests.burrow.chaos.journal import JournalWriter, What
from tests.burrow.chaos.plan import ASSIGNORS, Plan
from waterclock.burrow.core.records import Record
from waterclock.burrow.kafka.dead_letters import KafkaDeadLetters
from waterclock.burrow.kafka.source import KafkaSource
from waterclock.burrow.runtime.pool import Function, Pool

WORKERS = 16
COMMIT_S = 0.5
COMMIT_COUNT = 200
RETRIES_MAX = 3
SOON = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500, "fetch.wait.max.ms": 100}
"""A broker that restarts is to be found again soon: the client's own ten seconds are not ours."""


class Trouble(Exception):
    """A message does not want to be worked on."""


class JournaledDeadLetters:
    """Writes down what is in the dead letter topic, once it is."""

    def __init__(self, dead_letters: KafkaDeadLetters, journal: JournalWriter) -> None:
        self._dead_letters = dead_letters
        self._journal = journal

    async def write_dead_letters(self, records: Sequence[Record], error: BaseException) -> None:
        await self._dead_letters.write_dead_letters(records, error)
        for record in records:
            self._journal.note(What.DEAD_LETTERED, _place(record), _number(record))


class Worker:
    """The functions of a pool, in both kinds."""

    def __init__(self, plan: Plan, journal: JournalWriter) -> None:
        self._plan = plan
        self._journal = journal

    async def process(self, record: Record) -> None:
        work_s = self._begin(record)
        await asyncio.sleep(work_s)
        self._end(record)

    def process_blocking(self, record: Record) -> None:
        work_s = self._begin(record)
        time.sleep(work_s)
        self._end(record)

    @property
    def function(self) -> Function:
        return self.process if self._plan.is_async else self.process_blocking

    def _begin(self, record: Record) -> float:
        self._journal.note(What.BEGUN, _place(record), _number(record))
        return self._plan.nature(_number(record)).work_s

    def _end(self, record: Record) -> None:
        nature = self._plan.nature(_number(record))
        if nature.is_poison or record.attempt <= nature.failures:
            self._journal.note(What.FAILED, _place(record), _number(record))
            raise Trouble(f"{record!r} fails, as it should")
        self._journal.note(What.FINISHED, _place(record), _number(record))


def _place(record: Record) -> tuple[int, int]:
    return record.partition, record.offset


def _number(record: Record) -> int:
    return int(record.value or b"")


def main() -> None:
    """Consume until told to end."""
    said = json.loads(sys.argv[1])
    plan = Plan(**said["plan"])
    journal = JournalWriter(Path(said["journal"]))
    settings = {**said["settings"], **SOON, "group.id": said["group"], **ASSIGNORS[plan.assignor]}
    dead_letters = KafkaDeadLetters(said["settings"])
    planted: AbstractContextManager[object] = nullcontext()
    if said["plant"]:
        # Imported here only: a worker without a bug must not even know of them.
        from tests.burrow.chaos.planted import PLANTS

        planted = PLANTS[said["plant"]].put()

    async def run() -> None:
        pool = Pool(
            KafkaSource(settings, [said["topic"]]),
            Worker(plan, journal).function,
            workers=WORKERS,
            order=plan.order,
            max_retries=RETRIES_MAX,
            retry_delay_s=0.05,
            on_failure="dlq",
            dead_letters=JournaledDeadLetters(dead_letters, journal),
            commit_every_s=COMMIT_S,
            commit_every=COMMIT_COUNT,
            queue_max=plan.queue_max,
        )
        await pool.run()

    with planted:
        asyncio.run(run())


if __name__ == "__main__":
    main()
