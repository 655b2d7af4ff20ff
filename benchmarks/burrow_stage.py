"""What the rounds of `benchmarks.burrow` are played on: one broker with one topic, and the cases.

Everybody reads the same messages (128 B, ten thousand keys, four partitions), each time in a group
of its own, from the start. They lie in the page cache by then.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.burrow_pool import PREFETCH, TOPIC, WARM_UP
from benchmarks.client import run_client
from benchmarks.contest import Case, client
from benchmarks.harness import Bar, is_smoke, scaled, whole_batches
from benchmarks.peers import faststream, kafka, kafka_loop, kafka_mock, pyrallel
from benchmarks.peers.cache import Absent
from benchmarks.peers.lineup import is_wanted
from benchmarks.peers.server import Server

NOOPS = 500_000
PEER_NOOPS = 60_000
PEER_WORKERS = 1_000
"""What pyrallel-consumer has by default; with fewer, or more, it is slower."""
COMMITTED_EACH = 6_000
WORKERS = 100
MANY = 1_000
NOOP_BAR = Bar(100_000)
STUCK_BAR = Bar(32, is_floor=False)


@dataclass(frozen=True, slots=True)
class Load:
    """Work that takes its time: how long, for how many workers, and how often in all."""

    ms: int
    workers: int
    messages: int

    @property
    def name(self) -> str:
        """`1ms` with a hundred workers, `1ms_1000w` with a thousand."""
        return f"{self.ms}ms" if self.workers == WORKERS else f"{self.ms}ms_{self.workers}w"

    @property
    def ideal(self) -> float:
        """Messages a second if workers did nothing but work."""
        return self.workers / self.ms * 1_000

    @property
    def is_possible(self) -> bool:
        """Whether one process can be expected to do it: a million messages a second it cannot."""
        return self.ideal < 1_000_000

    def amount(self) -> int:
        """Give the number of messages at the scale of this run."""
        return scaled(self.messages, least=self.workers)

    def work(self) -> dict[str, int | float]:
        """Give it as the clients want it."""
        return {"messages": self.amount(), "workers": self.workers, "seconds": self.ms / 1_000}


FEW_LOADS = (
    Load(1, WORKERS, 100_000),
    Load(10, WORKERS, 20_000),
    Load(100, WORKERS, 2_000),
)
MANY_LOADS = (
    Load(1, MANY, 200_000),
    Load(10, MANY, 200_000),
    Load(100, MANY, 20_000),
)
# It takes seconds to join a group, so a smoke run is content with the first.
LOADS = FEW_LOADS if is_smoke() else (*FEW_LOADS, *MANY_LOADS)
PEER_LOAD = Load(10, MANY, 10_000)
THREADS_LOAD = Load(10, WORKERS, 15_000)


class Stage:
    """The broker and the cases."""

    def __init__(self) -> None:
        self._broker: Server | None = None
        self.notes: list[str] = []

    # Openers

    @contextmanager
    def node(self, folder: Path) -> Iterator[Server]:
        """Run a broker that has the messages; one that is not Kafka if there is no Kafka."""
        with ExitStack() as stack:
            try:
                if not is_wanted(kafka.NAME):
                    raise Absent("BENCH_PEERS leaves it out")
                broker = stack.enter_context(kafka.running(folder))
            except Absent as reason:
                self.notes.append(
                    f"Absent: kafka, because {reason}. All ran on the broker that is inside its "
                    f"client, in memory: compare nothing with this run."
                )
                broker = stack.enter_context(kafka_mock.running(folder / kafka_mock.NAME))
            else:
                run_client("benchmarks.burrow_pool:create", broker)
            run_client("benchmarks.burrow_pool:load", broker, messages=_messages())
            self._broker = broker
            yield broker

    @contextmanager
    def loop(self, folder: Path) -> Iterator[Server]:
        """Give the broker as it is."""
        yield self.broker()

    @contextmanager
    def pyrallel(self, folder: Path) -> Iterator[Server]:
        """Give the broker to pyrallel-consumer."""
        with pyrallel.beside(self.broker()) as server:
            yield server

    @contextmanager
    def faststream(self, folder: Path) -> Iterator[Server]:
        """Give the broker to FastStream."""
        with faststream.beside(self.broker()) as server:
            yield server

    def broker(self) -> Server:
        """Give the broker, which starts first."""
        assert self._broker is not None, "the broker starts first"
        return self._broker


def _messages() -> int:
    """Give how many messages the topic must have: what a pool reads ahead is needed too."""
    needs = [load.amount() + WARM_UP * load.workers + PREFETCH * load.workers for load in LOADS]
    return max(whole_batches(NOOPS), *needs)


def _fewer(messages: int) -> int:
    return whole_batches(messages) * 9 // 10


# Cases


def our_cases() -> list[Case]:
    """Give the cases of our pool, and of a loop without one."""
    noop = {"messages": whole_batches(NOOPS), "workers": WORKERS}
    cases = [
        Case(
            f"noop_{order}", "node", client("burrow_pool:noop", order=order, **noop),
            f"{WORKERS} workers", NOOP_BAR,
        )
        for order in ("none", "key")
    ]  # fmt: skip
    for load in LOADS:
        work = client("burrow_pool:work", order="key", **load.work())
        cases.append(Case(f"efficiency_{load.name}", "node", work))
        bare = client("burrow_pool:bare", **load.work())
        cases.append(Case(f"bare_{load.name}", "node", bare))
    threads = client("burrow_pool:sleep", order="key", **THREADS_LOAD.work())
    cases.append(Case(f"threads_{THREADS_LOAD.name}", "node", threads))
    # Not all of them: some are behind the stuck one, for they have its key.
    stuck = client("burrow_pool:stuck", order="key", workers=WORKERS, messages=_fewer(NOOPS))
    cases.append(Case("stuck_mb", "node", stuck))
    return cases


def their_cases() -> list[Case]:
    """Give the cases of the peers."""
    topic = {"topic": TOPIC}
    noop = {**topic, "messages": whole_batches(PEER_NOOPS), "workers": PEER_WORKERS}
    loop = client("peers.kafka_loop:consume", **topic, messages=whole_batches(NOOPS))
    cases = [Case("loop_noop", kafka_loop.NAME, loop, "one at a time")]
    for order, theirs in (("none", "unordered"), ("key", "key_hash")):
        run = client("peers.pyrallel:consume", order=theirs, **noop)
        cases.append(
            Case(f"pyrallel_noop_{order}", pyrallel.NAME, run, f"{PEER_WORKERS} in flight")
        )
    work = client("peers.pyrallel:consume", **topic, order="key_hash", **PEER_LOAD.work())
    cases.append(Case(f"pyrallel_efficiency_{PEER_LOAD.name}", pyrallel.NAME, work))
    each = {**topic, "messages": scaled(COMMITTED_EACH, least=100)}
    consume = "peers.faststream:consume"
    safe = client(consume, **each, is_ack_first=False)
    quick = client(consume, **each, is_ack_first=True)
    cases.append(Case("faststream_noop", faststream.NAME, safe, "commits each message"))
    cases.append(Case("faststream_ackfirst_noop", faststream.NAME, quick, "commits before work"))
    return cases
