"""One message is stuck while everything behind it is finished; then the process is killed, twice.

    python -m tests.burrow.chaos.stuck --messages 100000

The finished work survives in the offset map of the commits: almost nothing is done again. Other
partitions have no lag, and the memory of the process does not grow with what is finished.
"""

import argparse
import json
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from confluent_kafka import Producer

from benchmarks.peers.server import memory_mb
from tests.burrow.chaos.journal import JournalReader
from tests.burrow.kafka.kafka_broker import KafkaBroker
from tests.burrow.kafka.kafka_broker import running as running_broker
from tests.kit import processes
from tests.kit.processes import Process
from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.engine import Engine
from waterclock.burrow.core.offset_map import OffsetMaps
from waterclock.burrow.core.records import Assignment, Record, TopicPartition

MODULE = "tests.burrow.chaos.stuck_consumer"
PARTITIONS = 4
STUCK = 10
"""The number of the message that is stuck, which is its offset in the first partition."""
PATIENCE_S = 240.0
LOOK_S = 0.05
MAPS = OffsetMaps(units_max=4_095, text="base32768")


@dataclass
class Stuck:
    """What was counted."""

    messages: int
    """Of the partition with the stuck one; each of the others has a tenth of it."""
    redone: list[int] = field(default_factory=list)
    """How many were done again: after a kill in mid-work, which is what was finished since the last
    commit and does not grow with the messages; and after one when only the stuck was left."""
    lag_of_others: int = -1
    """While the message was stuck, after the others were finished."""
    map_chars: int = 0
    """Length of the map that holds everything behind it."""
    memory_mb: dict[int, float] = field(default_factory=dict)
    """Of the process, after so many were finished behind the stuck one."""
    missing: int = -1
    seconds: float = 0.0


class StuckRun:
    """One run."""

    def __init__(self, broker: KafkaBroker, folder: Path, *, messages: int) -> None:
        self._broker = broker
        self._folder = folder
        self._topic = f"stuck-{time.monotonic_ns()}"
        self._group = f"group-of-{self._topic}"
        self._processes: processes.Processes
        self._journals: list[JournalReader] = []
        self._counts: Counter[tuple[int, int]] = Counter()
        self._total = messages + (PARTITIONS - 1) * (messages // 10)
        self.stuck = Stuck(messages)

    def run(self) -> Stuck:
        """Consume; kill at the half and at the end; let the stuck one go, and count."""
        begun, messages, said = time.monotonic(), self.stuck.messages, self.stuck
        self._publish()
        with processes.running(self._folder) as self._processes:
            consumer = self._start(is_stuck=True)
            self._until(lambda: self._done(0) >= messages // 10)
            said.memory_mb[self._done(0)] = memory_mb(consumer.pid)["anonymous"]
            self._until(lambda: self._done(0) >= messages // 2)
            said.memory_mb[self._done(0)] = memory_mb(consumer.pid)["anonymous"]
            consumer = self._kill(consumer, is_stuck=True)
            self._until(self._is_all_but_one_committed)
            said.memory_mb[self._done(0)] = memory_mb(consumer.pid)["anonymous"]
            said.redone.append(self._redone())
            self._see_commits()
            consumer = self._kill(consumer, is_stuck=False)
            self._until(lambda: sum(self._broker_offsets()) == self._total)
            said.redone.append(self._redone() - said.redone[0])
            consumer.terminate()
            assert consumer.wait(60) == 0, consumer.output()
        said.missing = self._total - len(self._counts)
        said.seconds = round(time.monotonic() - begun, 1)
        return said

    def _publish(self) -> None:
        self._broker.create(self._topic, PARTITIONS)
        # Idempotent, for it keeps the order: the number of a message is its offset.
        settings = {"enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
        producer = Producer({**self._broker.settings, **settings})
        for partition in range(PARTITIONS):
            for number in range(self.stuck.messages // (10 if partition else 1)):
                # Nothing else may wait for the stuck one: each has a key of its own.
                value = b"%d" % (number + partition * 10**9)
                producer.produce(self._topic, value, value, partition=partition)
        assert producer.flush(60) == 0

    def _start(self, *, is_stuck: bool) -> Process:
        journal = self._folder / f"{len(self._journals)}.journal"
        self._journals.append(JournalReader(journal))
        said = {
            "settings": self._broker.settings,
            "group": self._group,
            "topic": self._topic,
            "journal": str(journal),
            "stuck": [STUCK] if is_stuck else [],
        }
        return self._processes.start(MODULE, said)

    def _kill(self, consumer: Process, *, is_stuck: bool) -> Process:
        consumer.kill()
        return self._start(is_stuck=is_stuck)

    def _until(self, is_enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_enough():
            outputs = [each.output() for each in self._processes.all]
            assert time.monotonic() < deadline, f"{len(self._counts)} finished: {outputs}"
            time.sleep(LOOK_S)

    def _read(self) -> None:
        for journal in self._journals:
            self._counts.update(entry.place for entry in journal.more())

    def _done(self, partition: int) -> int:
        self._read()
        return sum(place[0] == partition for place in self._counts)

    def _redone(self) -> int:
        self._read()
        return self._counts.total() - len(self._counts)

    def _broker_offsets(self) -> list[int]:
        found = self._broker.committed(self._topic, self._group, PARTITIONS)
        return [max(offset, 0) for offset in found.values()]

    def _is_all_but_one_committed(self) -> bool:
        self._read()
        if len(self._counts) < self._total - 1:
            return False
        found = self._broker.commits(self._topic, self._group, PARTITIONS)
        text, base, end = found[0].metadata or "", found[0].offset, self.stuck.messages
        runs = MAPS.decode(text, base=base, log_end=end)
        return base == STUCK and runs == [(STUCK + 1, end)] and self._lag_of_others() == 0

    def _lag_of_others(self) -> int:
        offsets = self._broker_offsets()
        return (PARTITIONS - 1) * (self.stuck.messages // 10) - sum(offsets[1:])

    def _see_commits(self) -> None:
        self.stuck.lag_of_others = self._lag_of_others()
        found = self._broker.commits(self._topic, self._group, PARTITIONS)
        self.stuck.map_chars = len(found[0].metadata or "")


def tracked_bytes(finished: int, *, stuck_every: int | None = None) -> int:
    """Return the memory an engine needs after so many are finished behind a stuck one; with
    `stuck_every` one in so many is stuck too."""
    name, chunk = TopicPartition("orders", 0), 1_000
    engine = Engine(EngineConfig(order="none", queue_max=10**9, prefetch_max=10**9), Random(0))
    engine.assigned([Assignment(name, 1, 0)], 0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for start in range(0, finished + 1, chunk):
            records = [
                Record(*name, offset, None, None, epoch=1)
                for offset in range(start, min(start + chunk, finished + 1))
            ]
            engine.polled(records, 0)
            taken = engine.take(chunk)
            engine.finished(
                [
                    each
                    for each in taken
                    if each.offset and not (stuck_every and each.offset % stuck_every == 0)
                ],
                0,
            )
            del records, taken
        engine.views(0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before


def main() -> int:
    """Run it on a broker of its own, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waterclock-stuck-") as name:
        folder = Path(name)
        with running_broker(folder / "kafka") as broker:
            stuck = StuckRun(broker, folder / "consumers", messages=said.messages).run()
    sizes = {count: tracked_bytes(count) for count in (said.messages, 10 * said.messages)}
    print(json.dumps({**asdict(stuck), "tracked_bytes": sizes}, indent=1))
    return int(stuck.missing > 0 or stuck.redone[1] > said.messages // 100)


if __name__ == "__main__":
    sys.exit(main())
