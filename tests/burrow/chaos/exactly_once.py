"""A topic is copied under kills: each message is once in the copy, for who reads what is committed.

    python -m tests.burrow.chaos.exactly_once --messages 100000 --kills 6

The first copier dies when all of a transaction is written and its commit is about to be made. Two
copiers share what is left. One of them is killed again and again, and replaced by a new life of the
same transactional id. Once one is paused in the midst of its work while its replacement runs: a
zombie, that must be fenced when it wakes. What was aborted on the way is counted too: without it
the test would have shown nothing.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from tests.burrow.chaos.copier import BEGUN, FENCED_CODE
from tests.burrow.kafka.kafka_broker import KafkaBroker
from tests.burrow.kafka.kafka_broker import running as running_broker
from tests.kit import processes
from tests.kit.processes import Process

MODULE = "tests.burrow.chaos.copier"
PARTITIONS = 6
COPIERS = 2
KEYS = 500
MORE = 200
"""Messages published at a time while a zombie is looked at."""
DIES_AT_COMMIT = 3
PAUSE_S = 6.0
"""Longer than the session of a copier."""
PATIENCE_S = 300.0
LOOK_S = 0.1


@dataclass
class Copied:
    """What was counted."""

    messages: int
    kills: int = 0
    zombies_fenced: int = 0
    written: int = 0
    """Messages in the copy, those of aborted transactions among them."""
    committed: int = 0
    missing: int = 0
    repeated: int = 0
    seconds: float = 0.0


class Copying:
    """One run."""

    def __init__(
        self, broker: KafkaBroker, folder: Path, *, messages: int, seed: int, is_plain: bool
    ) -> None:
        self._broker = broker
        self._folder = folder
        self._rng = Random(seed)
        self._topic = f"copied-{time.monotonic_ns()}"
        self._is_plain = is_plain
        self._copiers: list[Process] = []
        self._processes: processes.Processes
        self.copied = Copied(messages)

    def run(self, *, kills: int) -> Copied:
        """Copy everything, with kills spread over the way, and then a zombie."""
        messages, begun = self.copied.messages, time.monotonic()
        self._broker.create(self._topic, PARTITIONS)
        self._broker.create(f"{self._topic}-copy", PARTITIONS)
        self._broker.publish(self._topic, messages, keys=KEYS)
        with processes.running(self._folder) as self._processes:
            self._die_before_a_commit()
            self._copiers = [self._start(slot) for slot in range(COPIERS)]
            for at in range(1, kills + 1):
                self._wait_for(messages * at // (kills + 2))
                self._kill(self._rng.randrange(COPIERS))
            self._wait_for(messages * (kills + 1) // (kills + 2))
            if not self._is_plain:  # it would not notice that it is a zombie
                self._see_fenced(self._replace_paused(self._rng.randrange(COPIERS)))
            self._wait_for(self.copied.messages)
            self._end_all()
        self._count()
        self.copied.seconds = round(time.monotonic() - begun, 1)
        return self.copied

    def _die_before_a_commit(self) -> None:
        copier = self._start(0, dies_at_commit=DIES_AT_COMMIT)
        assert copier.wait(PATIENCE_S) == -signal.SIGKILL, copier.output()
        self.copied.kills += 1

    def _start(self, slot: int, *, dies_at_commit: int = 0) -> Process:
        said = {
            "settings": self._broker.settings,
            "group": f"group-of-{self._topic}",
            "topic": self._topic,
            "target": f"{self._topic}-copy",
            "transactional_id": f"{self._topic}-{slot}",
            "work_s": 0.002,
            "is_plain": self._is_plain,
            "dies_at_commit": dies_at_commit,
        }
        return self._processes.start(MODULE, said)

    def _wait_for(self, count: int) -> None:
        """Return when so many are committed; patience is the limit."""
        deadline = time.monotonic() + PATIENCE_S
        while self._committed() < count:
            outputs = [each.output() for each in self._copiers]
            is_alive = all(each.is_running for each in self._copiers)
            assert is_alive, f"a copier ended: {outputs}"
            assert time.monotonic() < deadline, f"{self._committed()} committed: {outputs}"
            time.sleep(LOOK_S)

    def _committed(self) -> int:
        found = self._broker.committed(self._topic, f"group-of-{self._topic}", PARTITIONS)
        return sum(max(offset, 0) for offset in found.values())

    def _kill(self, slot: int) -> None:
        self._copiers[slot].kill()
        self._copiers[slot] = self._start(slot)
        self.copied.kills += 1

    def _replace_paused(self, slot: int) -> Process:
        """Pause a copier past its session while a new life of it goes on; then wake it."""
        zombie = self._copiers[slot]
        zombie.pause()
        self._copiers[slot] = self._start(slot)
        time.sleep(PAUSE_S)
        zombie.resume()
        return zombie

    def _see_fenced(self, zombie: Process) -> None:
        """Have more to copy, until the zombie has had some of it and is refused."""
        deadline = time.monotonic() + PATIENCE_S
        while zombie.is_running:
            assert time.monotonic() < deadline, zombie.output()
            self._broker.publish(self._topic, MORE, keys=KEYS, start=self.copied.messages)
            self.copied.messages += MORE
            time.sleep(LOOK_S)
        assert zombie.code == FENCED_CODE, zombie.output()
        self.copied.zombies_fenced += 1

    def _end_all(self) -> None:
        for copier in self._copiers:
            self._see_begun(copier)
        for copier in self._copiers:
            copier.terminate()
        for copier in self._copiers:
            assert copier.wait(60) == 0, copier.output()

    def _see_begun(self, copier: Process) -> None:
        """Wait for one that was started late: the others may have copied everything by then."""
        deadline = time.monotonic() + PATIENCE_S
        while BEGUN not in copier.output():
            assert copier.is_running, copier.output()
            assert time.monotonic() < deadline, copier.output()
            time.sleep(LOOK_S)

    def _count(self) -> None:
        copied, target = self.copied, f"{self._topic}-copy"
        values = Counter(self._broker.read(target, PARTITIONS))
        copied.committed = values.total()
        copied.missing = sum(b"%d" % number not in values for number in range(copied.messages))
        copied.repeated = values.total() - len(values)
        everything = self._broker.read(target, PARTITIONS, isolation="read_uncommitted")
        copied.written = len(everything)


def main() -> int:
    """Run it on a broker of its own, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="without transactions: must fail")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waterclock-copied-") as name:
        folder = Path(name)
        with running_broker(folder / "kafka") as broker:
            copying = Copying(
                broker, folder / "copiers",
                messages=said.messages, seed=said.seed, is_plain=said.plain,
            )  # fmt: skip
            copied = copying.run(kills=said.kills)
    print(json.dumps(asdict(copied), indent=1))
    return int(copied.missing > 0 or copied.repeated > 0)


if __name__ == "__main__":
    sys.exit(main())
