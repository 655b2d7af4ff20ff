"""The conductor: plays a round by its plan, with real processes, and brings home its history.

It decides nothing: what happens when is in the plan. Who is hit is whoever leads then, or the
worker of the plan's number among those that run. The dead are replaced, as a supervisor would.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import redis

from tests.dispatch.chaos.fleet import WIRED_HOST, Fleet, Member
from tests.dispatch.chaos.history import History, Performed, read_journals
from tests.dispatch.chaos.outcome import Outcome
from tests.dispatch.chaos.plan import Fault, Plan, Step
from tests.dispatch.chaos.program import DIE_AFTER_WRITE, DIE_BEFORE_WRITE
from tests.dispatch.chaos.publisher import Publisher
from tests.dispatch.chaos.stage import Stage, client_of
from tests.dispatch.chaos.watcher import Watcher
from tests.kit.fork_server import ForkServer
from tests.kit.network import Network, Wire
from waterclock.dispatch.redis.keys import Keys

TICK_S = 0.02
READY_S_MAX = 20.0
PATIENCE_S = 15.0
REPLACE_S = 0.3
"""How long the dead stay dead."""
QUIET_S = 1.2
"""Nothing pending and nothing new for so long: what is not there is not coming."""


@dataclass(slots=True)
class _Ongoing:
    """A fault that must be undone."""

    step: Step
    from_s: float
    until_s: float
    undo: Callable[[], None]
    epoch: int
    target: str


class Conductor:
    """Plays one round."""

    def __init__(
        self,
        plan: Plan,
        *,
        stage: Stage,
        network: Network,
        fork_server: ForkServer,
        folder: Path,
        plant: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._plan = plan
        self._stage = stage
        self._network = network
        self._folder = folder
        self._patience_s = patience_s
        folder.mkdir(parents=True, exist_ok=True)
        self._fleet = Fleet(
            plan, stage=stage, network=network, fork_server=fork_server, folder=folder, plant=plant
        )
        self._outcome = Outcome(
            stage, prefix=self._fleet.prefix, source_kind=plan.source_kind,
            source=self._fleet.source, output=self._fleet.output, streams=plan.streams,
        )  # fmt: skip
        self._watcher = Watcher(stage.client, Keys(self._fleet.prefix).lock)
        self._publisher_wires: list[Wire] = []
        self._history = History(plan)
        self._ongoing: list[_Ongoing] = []
        self._replacements: list[tuple[float, str]] = []
        self._dead_names: set[str] = set()

    def run(self) -> History:
        """Play it, end everybody, and return what was."""
        history, started_s = self._history, time.monotonic()
        self._publisher_wires = [self._network.wire(each.port) for each in self._stage.servers]
        self._watcher.start()
        try:
            self._begin()
            self._play()
            self._wait_for_the_rest()
        finally:
            for each in [*self._ongoing]:
                self._undo(each)
            self._fleet.end()
            self._watcher.stop()
            for wire in self._publisher_wires:
                wire.close()
        history.leader_epochs = self._watcher.leader_epochs
        history.entries, history.dead_letters = (
            self._outcome.entries(),
            self._outcome.dead_letters(),
        )
        history.journals = read_journals(self._folder.glob("*.jsonl"))
        history.seconds = time.monotonic() - started_s
        self._stage.clear()
        return history

    # Before

    def _begin(self) -> None:
        """Start everybody, and wait until there is a leader with workers."""
        for _ in range(1 + self._plan.standbys):
            self._start_dispatcher()
        for _ in range(self._plan.workers):
            self._fleet.start_worker()
        deadline_s = time.monotonic() + READY_S_MAX
        while not self._is_ready():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"nobody leads; see {self._folder}/programs.log")
            time.sleep(TICK_S)

    def _is_ready(self) -> bool:
        if self._watcher.leader is None:
            return False
        if self._plan.source_kind == "pubsub":
            with self._stage.client() as client:
                (_, listeners), *_ = client.pubsub_numsub(self._fleet.source)
            if listeners < 1 + self._plan.standbys:
                return False
        journals = read_journals(self._folder.glob("worker-*.jsonl"))
        followed = [any(line["what"] == "followed" for line in each) for each in journals.values()]
        return len(followed) == self._plan.workers and all(followed)

    def _start_dispatcher(self) -> None:
        self._fleet.start_dispatcher()
        for port, name in self._fleet.ports.items():
            self._watcher.call(port, name)

    # Meanwhile

    def _play(self) -> None:
        plan = self._plan
        publisher = Publisher(
            lambda: client_of(self._publisher_wires[self._master_index].port),
            source=self._fleet.source, is_stream=plan.source_kind == "stream", rate=plan.rate,
            count=plan.messages, kind_of=plan.kind_of,
            replicas=1 if self._stage.is_replicated else 0,
        )  # fmt: skip
        publisher.start()
        started_s = time.monotonic()
        steps = [*plan.steps]
        while steps or self._ongoing or publisher.is_alive():
            now_s = time.monotonic()
            for each in [each for each in self._ongoing if each.until_s <= now_s]:
                self._undo(each)
            while steps and started_s + steps[0].at_ms / 1_000 <= now_s:
                self._perform(steps.pop(0))
            self._replace_the_dead(now_s)
            time.sleep(TICK_S)
        publisher.join()
        self._history.published = publisher.published

    @property
    def _master_index(self) -> int:
        return self._stage.servers.index(self._stage.master)

    def _replace_the_dead(self, now_s: float) -> None:
        fleet = self._fleet
        for members, kind in ((fleet.dispatchers, "dispatcher"), (fleet.workers, "worker")):
            for member in members:
                if member.name not in self._dead_names and not member.process.is_running:
                    self._dead_names.add(member.name)
                    self._replacements.append((now_s + REPLACE_S, kind))
        due = [each for each in self._replacements if each[0] <= now_s]
        self._replacements = [each for each in self._replacements if each[0] > now_s]
        for _, kind in due:
            if kind == "dispatcher":
                self._start_dispatcher()
            else:
                fleet.start_worker()

    def _leader(self) -> Member | None:
        leader_epoch = self._watcher.leader
        return self._fleet.everybody.get(leader_epoch.name) if leader_epoch is not None else None

    def _standby(self, index: int) -> Member | None:
        leader = self._leader()
        others = [each for each in self._fleet.dispatchers if each is not leader and each.is_up]
        return others[index % len(others)] if others else None

    def _worker(self, index: int) -> Member | None:
        others = [each for each in self._fleet.workers if each.is_up]
        return others[index % len(others)] if others else None

    def _perform(self, step: Step) -> None:
        fault, now_s = step.fault, time.monotonic()
        leader_epoch = self._watcher.leader
        epoch = leader_epoch.epoch if leader_epoch is not None else 0
        word = fault.value.split()[0] if not fault.value.startswith("cut") else fault.value[4:]
        target: Member | None = None
        if fault is Fault.CUT_STANDBY_REDIS or word == "standby":
            target = self._standby(step.index)
        elif word == "worker" or fault is Fault.CUT_WORKER_REDIS:
            target = self._worker(step.index)
        elif word == "leader" or fault in (Fault.CUT_LEADER_REDIS, Fault.CUT_LEADER_WORKER):
            target = self._leader()
            if target is not None and not target.is_up:
                target = None
        needs_target = fault not in NEED_NOBODY
        if needs_target and target is None:
            return
        undo = self._do(step, target)
        name = target.name if target is not None else ""
        ongoing = _Ongoing(step, now_s, now_s + step.for_ms / 1_000, undo, epoch, name)
        self._ongoing.append(ongoing)

    def _undo(self, each: _Ongoing) -> None:
        self._ongoing.remove(each)
        each.undo()
        self._history.performed.append(
            Performed(each.step, each.from_s, time.monotonic(), each.epoch, each.target)
        )

    def _do(self, step: Step, target: Member | None) -> Callable[[], None]:
        """Do it, and return how it is undone."""
        match step.fault:
            case Fault.REDIS_RESTART:
                self._stage.restart(step.for_ms / 1_000)
            case Fault.REDIS_FAILOVER:
                self._stage.fail_over(step.for_ms / 1_000)
            case Fault.REDIS_PAUSE:
                self._stage.master.pause()
                return self._stage.master.resume
            case Fault.CUT_PUBLISHER_REDIS:
                return _cut(self._publisher_wires, step)
            case Fault.GARBAGE:
                self._send_garbage(step)
            case Fault.NEWCOMER:
                self._start_dispatcher()
            case _:
                assert target is not None
                return self._do_to(step, target)
        return _nothing

    def _do_to(self, step: Step, target: Member) -> Callable[[], None]:
        process = target.process
        match step.fault:
            case Fault.LEADER_KILL | Fault.STANDBY_KILL | Fault.WORKER_KILL:
                process.kill()
            case Fault.LEADER_STOP | Fault.WORKER_STOP:
                process.terminate()
            case Fault.LEADER_PAUSE | Fault.LEADER_BLINK | Fault.WORKER_PAUSE:
                process.pause()
                return process.resume
            case Fault.WORKER_DIES_BEFORE_WRITE:
                process.send(DIE_BEFORE_WRITE)
            case Fault.WORKER_DIES_AFTER_WRITE:
                process.send(DIE_AFTER_WRITE)
            case Fault.CUT_LEADER_REDIS | Fault.CUT_STANDBY_REDIS | Fault.CUT_WORKER_REDIS:
                return _cut(target.redis, step)
            case Fault.CUT_LEADER_WORKER:
                assert target.own is not None
                worker = self._worker(step.index)
                # Every third time all workers are cut off.
                who = worker.name if worker is not None and step.index % 3 else ""
                return _cut([target.own], step, who)
            case _:
                raise AssertionError(step.fault)
        return _nothing

    def _send_garbage(self, step: Step) -> None:
        """Say things to the leader that no worker would say."""
        leader = self._leader()
        if leader is None or leader.own is None:
            return
        rng = Random(step.at_ms * 1_000 + step.index)
        args = [
            rng.randbytes(rng.randrange(1, 300)),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x01\x02\xff\xff\xff\xff" + rng.randbytes(64),
            b"\x01\x00\x00\x00",
        ]
        for each in args:
            with (
                suppress(OSError),
                socket.create_connection((WIRED_HOST, leader.own.port), 1) as wire,
            ):
                wire.settimeout(0.05)
                wire.sendall(each)
                wire.recv(1_000)

    # After

    def _wait_for_the_rest(self) -> None:
        """Wait until all that was published is somewhere, or nothing moves any more."""
        wanted = {each.n for each in self._history.published if each.is_sure}
        deadline_s = time.monotonic() + self._patience_s
        seen: set[int] = set()
        changed_s = time.monotonic()
        while not (wanted <= seen and self._outcome.is_nothing_pending()):
            now_s = time.monotonic()
            if now_s > deadline_s:
                self._history.is_settled = False
                break
            self._replace_the_dead(now_s)
            with suppress(redis.RedisError):
                found = self._outcome.numbers()
                if len(found) > len(seen):
                    seen, changed_s = found, now_s
            if now_s - changed_s > QUIET_S and self._outcome.is_nothing_pending():
                break
            time.sleep(4 * TICK_S)
        self._history.ended_s = time.monotonic()


NEED_NOBODY = (
    Fault.REDIS_RESTART, Fault.REDIS_FAILOVER, Fault.REDIS_PAUSE, Fault.CUT_PUBLISHER_REDIS,
    Fault.GARBAGE, Fault.NEWCOMER,
)  # fmt: skip


def _nothing() -> None:
    return


def _cut(wires: list[Wire], step: Step, who: str = "") -> Callable[[], None]:
    for wire in wires:
        wire.cut(step.mode, who)

    def heal() -> None:
        for wire in wires:
            wire.heal()

    return heal
