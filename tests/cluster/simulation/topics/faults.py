"""What is done to a simulated cluster. Each seed chooses some kinds, and does those often.

Seeds that do a few things often reach states that seeds that do everything at times do not (swarm
testing, Groce et al. 2012).
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING

from waterclock.cluster.coordinator.fake import Weather
from waterclock.cluster.coordinator.questions import Revoke
from waterclock.cluster.coordinator.requests import Revision

if TYPE_CHECKING:
    from tests.cluster.simulation.topics.world import World

Undo = Callable[[], None]
ONCE = ("disk wiped", "log removed", "machine lost", "rot")


class Faults:
    """The faults of one run."""

    def __init__(self, world: "World", rng: Random) -> None:
        self.done: Counter[str] = Counter()
        self.clock_error_max_ms = 0
        self._world = world
        self._rng = rng
        self._is_over = False
        self._undo: dict[int, Undo] = {}
        self._number = 0
        self._is_spared = True
        """No disk was wiped, rotted or lost: of more than one, what is committed may be gone."""
        self.rotten: str | None = None
        self.rotten_replica: str | None = None
        kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "power cut": self._power_cut,
            "power cut of all": self._power_cut_of_all,
            "pause": self._pause,
            "link broken": self._break_link,
            "node cut off": self._cut_off,
            "one way cut": self._cut_one_way,
            "bridge": self._bridge,
            "slow network": self._slow_network,
            "slow disk": self._slow_disk,
            "fsync fails": self._fail_fsync,
            "disk full": self._fill_disk,
            "disk wiped": self._wipe,
            "machine lost": self._lose,
            "rot": self._rot,
            "clock step": self._step_clock,
            "etcd away": self._etcd_away,
            "etcd stalled": self._etcd_stalled,
            "etcd cut": self._etcd_cut,
            "etcd compacted": self._etcd_compacted,
            "etcd slow": self._etcd_slow,
            "lease lost": self._lose_lease,
        }
        chosen = rng.sample(sorted(kinds), rng.randint(2, 7))
        self._all = {**kinds, "log removed": self._remove_log}
        """The last one is only done where it is asked for."""
        self._kinds = {kind: kinds[kind] for kind in chosen}
        self._gap_ms = rng.choice((150, 400, 900))

    def do_only(self, *kinds: str) -> None:
        """Do these, and nothing that the seed chose."""
        self._kinds = {kind: self._all[kind] for kind in kinds}

    # When

    def begin(self, until_ms: int) -> None:
        """Do harm until a time."""
        self._world.tell(f"faults: {', '.join(self._kinds)}")
        self._later(until_ms)

    def _later(self, until_ms: int) -> None:
        gap_ms = 1 + int(self._rng.expovariate(1 / self._gap_ms))
        if self._world.timeline.now_ms + gap_ms < until_ms:
            self._world.timeline.after(gap_ms, partial(self._strike, until_ms))

    def _strike(self, until_ms: int) -> None:
        kind = self._rng.choice(list(self._kinds))
        self._world.tell(f"fault: {kind}")
        self._kinds[kind]()
        self.done[kind] += kind not in ONCE
        self._later(until_ms)

    def heal(self) -> None:
        """Undo all that is not undone, and start all that does not run."""
        self._is_over = True
        for number in list(self._undo):
            self._undo.pop(number)()
        # Each partition has a folder: of what still waits to fail, a machine would end many times.
        for machine in self._world.machines.values():
            for folder in (*machine.folders.values(), machine.own):
                folder.fail_no_sync()
        if self.rotten is not None:
            self._world.wipe(self.rotten)
        for name in self._world.names:
            self._world.start(name)

    def _for_a_while(self, undo: Undo, ms: tuple[int, int]) -> None:
        self._number += 1
        number = self._number
        self._undo[number] = undo

        def end() -> None:
            if number in self._undo:
                self._undo.pop(number)()

        self._world.timeline.after(self._rng.randint(*ms), end)

    def _name(self) -> str:
        """Choose a node, one that leads more often than not."""
        world = self._world
        leader = world.leader(self._rng.choice(world.log_ids))
        if leader is not None and self._rng.random() < 0.5:
            return leader.process.name
        return self._rng.choice(world.names)

    def _start_later(self, name: str) -> None:
        self._for_a_while(lambda: self._world.start(name), (1, 3_000))

    # Processes and machines

    def _kill(self) -> None:
        name = self._name()
        self._world.kill(name)
        self._start_later(name)

    def _power_cut(self) -> None:
        name = self._name()
        self._world.cut_power(name)
        self._start_later(name)

    def _power_cut_of_all(self) -> None:
        for name in self._world.names:
            self._world.cut_power(name)
            self._start_later(name)

    def _pause(self) -> None:
        process = self._world.processes[self._name()]
        if process is not None and process.is_running:
            process.pause()
            self._for_a_while(process.resume, self._rng.choice([(10, 500), (1_000, 6_000)]))

    # The network

    def _break_link(self) -> None:
        self._world.network.cut(*self._rng.sample(self._world.names, 2))

    def _cut_ways(self, ways: list[tuple[str, str]]) -> None:
        network = self._world.network
        for way in ways:
            network.block(*way)

        def undo() -> None:
            for way in ways:
                network.unblock(*way)

        self._for_a_while(undo, self._rng.choice([(50, 1_500), (2_500, 6_000)]))

    def _cut_off(self) -> None:
        name = self._name()
        others = [other for other in self._world.names if other != name]
        if self._rng.random() < 0.7:
            self._etcd_cut(name)  # else it keeps its lease, and nobody takes over
        self._cut_ways([(name, each) for each in others] + [(each, name) for each in others])

    def _cut_one_way(self) -> None:
        ways = list(permutations(self._world.names, 2))
        self._cut_ways(self._rng.sample(ways, self._rng.randint(1, 3)))

    def _bridge(self) -> None:
        """Two halves that do not reach each other, and one node that reaches all."""
        _, *others = self._rng.sample(self._world.names, len(self._world.names))
        half = len(others) // 2
        one, other = others[:half], others[half:]
        ways = [(a, b) for a in one for b in other]
        self._cut_ways(ways + [(b, a) for a, b in ways])

    def _slow_network(self) -> None:
        network = self._world.network
        network.delay_ms = (0, self._rng.choice((30, 300)))

        def undo() -> None:
            network.delay_ms = (0, 4)

        self._for_a_while(undo, (200, 3_000))

    # Disks

    def _slow_disk(self) -> None:
        machine = self._world.machines[self._name()]
        machine.flush_ms = (0, self._rng.choice((60, 600)))

        def undo() -> None:
            machine.flush_ms = (0, 3)

        self._for_a_while(undo, (200, 4_000))

    def _fail_fsync(self) -> None:
        machine = self._world.machines[self._name()]
        for folder in machine.folders.values():
            folder.fail_next_sync(drop=self._rng.random() < 0.7)
        if self._rng.random() < 0.3:
            machine.own.fail_next_sync()

    def _fill_disk(self) -> None:
        machine = self._world.machines[self._name()]
        machine.fill()
        self._for_a_while(machine.make_room, (200, 4_000))

    def _wipe(self) -> None:
        """Put a new disk into a machine: once in a run, for two copies that are gone may be all."""
        if self._is_spared and self._world.shape.copies >= 3:
            self._is_spared = False
            self.done["disk wiped"] += 1
            name = self._name()
            self._world.wipe(name)
            self._start_later(name)

    def _remove_log(self) -> None:
        """Remove what a node has of one log: once in a run, as a disk."""
        world, name = self._world, self._name()
        if self._is_spared and world.shape.copies >= 3 and world.machines[name].folders:
            self._is_spared = False
            self.done["log removed"] += 1
            world.remove_log(name, self._rng.choice(sorted(world.machines[name].folders)))
            self._start_later(name)

    def _lose(self) -> None:
        """Have a machine never come back, if another can take its place."""
        world = self._world
        shape = world.shape
        is_spare = shape.nodes > shape.copies >= 3 and shape.replace_after_ms > 0
        if self._is_spared and is_spare:
            self._is_spared = False
            self.done["machine lost"] += 1
            world.lose(self._name())

    def _rot(self) -> None:
        """Flip a bit of what was flushed; the faulty replica is replaced when all is mended."""
        if self._is_spared and self._world.shape.copies >= 3:
            name = self._name()
            self._world.kill(name)
            if self._world.machines[name].rot():
                self._is_spared = False
                self.rotten, self.rotten_replica = name, self._world.replica(name)
                self.done["rot"] += 1
            self._start_later(name)

    def _step_clock(self) -> None:
        machine = self._world.machines[self._name()]
        machine.clock_error_ms = self._rng.choice((0, self._rng.randint(-3_000, 3_000)))
        self.clock_error_max_ms = max(self.clock_error_max_ms, machine.clock_error_ms)

    # etcd

    def _etcd_away(self) -> None:
        store = self._world.store
        store.pass_time()
        store.fake.go_away()

        def undo() -> None:
            store.pass_time()
            store.fake.come_back()
            store.wake()

        self._for_a_while(undo, (100, 5_000))

    def _etcd_stalled(self) -> None:
        store = self._world.store
        store.pass_time()
        store.fake.stall()

        def undo() -> None:
            store.pass_time()
            store.fake.resume()
            store.wake()

        self._for_a_while(undo, (100, 5_000))

    def _etcd_cut(self, name: str | None = None) -> None:
        store, process = self._world.store, self._world.processes[name or self._name()]
        if process is None:
            return
        client = process.session.client
        store.pass_time()
        store.fake.cut(client)

        def undo() -> None:
            store.pass_time()
            store.fake.heal(client)
            store.wake()

        self._for_a_while(undo, (500, 6_000))

    def _etcd_compacted(self) -> None:
        store = self._world.store
        store.pass_time()
        kept = store.fake.store
        if kept.compacted < kept.revision:
            store.fake.compact(Revision(self._rng.randint(kept.compacted + 1, kept.revision)))
            store.wake()

    def _etcd_slow(self) -> None:
        store = self._world.store
        store.fake.weather = Weather(delay_ms=(1, 400), watch_ms=(1, self._rng.choice((50, 1_500))))

        def undo() -> None:
            store.fake.weather = Weather()

        self._for_a_while(undo, (200, 4_000))

    def _lose_lease(self) -> None:
        process = self._world.processes[self._name()]
        lease = None if process is None else process.session.lease
        if lease is not None:
            self._world.store.ask("nobody", Revoke(lease), lambda outcome: None)
