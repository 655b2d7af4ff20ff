"""A copier as a process: consume, process, produce, each message once.

With `is_plain` it produces outside of transactions, as a program would that does not know better:
then the copy must be seen to have messages twice. With `dies_at_commit` it ends itself as a kill
would, at the worst moment: everything is produced, and the commit is about to be made.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Producer

from waterclock.burrow.core.records import Commit, Record, TopicPartition
from waterclock.burrow.kafka.source import KafkaSource
from waterclock.burrow.kafka.transactions import KafkaTransactions
from waterclock.burrow.runtime.pool import Pool
from waterclock.burrow.runtime.source import Output

WORKERS = 50
FAILS_EVERY = 997
SESSION = {"session.timeout.ms": 4_000, "heartbeat.interval.ms": 500}
FENCED_CODE = 3
"""The exit code of a copier whose pool ended with an error."""
BEGUN = "the pool runs"
"""What a copier says once a signal ends it in good order."""


class Trouble(Exception):
    """Once."""


class CrashingTransactions(KafkaTransactions):
    """Dies when a transaction is about to be committed."""

    commits_left = 0

    def _commit_transaction(self, commits: Mapping[TopicPartition, Commit]) -> KafkaError | None:
        self.commits_left -= 1
        if self.commits_left == 0:
            self._producer.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._commit_transaction(commits)


class CrashingSource(KafkaSource):
    """Dies when offsets are about to be committed."""

    commits_left = 0
    flush: Callable[[], object]

    def _commit_ours(
        self, commits: Mapping[TopicPartition, Commit], stamped: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        self.commits_left -= 1
        if self.commits_left == 0:
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._commit_ours(commits, stamped)


class Copier:
    """The function of the pool, in both kinds."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said
        self._producer: Producer | None = None

    async def copy(self, record: Record) -> Output:
        await self._work(record)
        return Output(self._said["target"], record.value, record.key)

    async def copy_plainly(self, record: Record) -> None:
        await self._work(record)
        if self._producer is None:
            self._producer = Producer(self._said["settings"])
        self._producer.produce(self._said["target"], record.value, record.key)
        self._producer.poll(0)

    async def _work(self, record: Record) -> None:
        number = int(record.value or b"")
        await asyncio.sleep(self._said["work_s"] * (number % 5))
        if number % FAILS_EVERY == 0 and record.attempt == 1:
            raise Trouble(f"{number} fails once")

    def pool(self) -> Pool:
        said = self._said
        settings = {**said["settings"], "group.id": said["group"], **SESSION}
        options: dict[str, Any] = {
            "workers": WORKERS,
            "order": "key",
            "commit_every_s": 0.2,
            "commit_every": 2_000,
            "retry_delay_s": 0.01,
        }
        if said["is_plain"]:
            plain = CrashingSource(settings, [said["topic"]])
            plain.commits_left = said["dies_at_commit"]
            plain.flush = lambda: self._producer is not None and self._producer.flush()
            return Pool(plain, self.copy_plainly, **options)
        source = CrashingTransactions(
            settings,
            [said["topic"]],
            transactional_id=said["transactional_id"],
            producer={"transaction.timeout.ms": 10_000, "linger.ms": 5},
        )
        source.commits_left = said["dies_at_commit"]
        return Pool(source, self.copy, **options)


def main() -> int:
    """Copy until told to end."""

    async def run() -> None:
        # Said at the pool's first await, when it has its signals.
        asyncio.get_running_loop().call_soon(partial(print, BEGUN, flush=True))
        await Copier(json.loads(sys.argv[1])).pool().run()

    try:
        asyncio.run(run())
    except Exception as error:
        print(f"the pool ended with {error!r}", flush=True)
        return FENCED_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
