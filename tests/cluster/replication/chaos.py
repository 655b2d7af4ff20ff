"""A world in which a seed decides what happens next, and what goes wrong."""

from random import Random

from tests.cluster.replication.model_world import LEASE_MS, Step, World
from waterclock.cluster.replication.effects import Unknown
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.model.ids import Offset

KINDS = ("add_learner", "promote", "promote", "remove", "demote", "prefer", "transfer")
"""What a leader is told to do with its set of replicas."""


class Chaos:
    """Some thousand steps in any order, faults among them; then everything heals."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        voters = self.rng.choice(["a", "ab", "abc", "abc", "abc", "abcde"])
        others = self.rng.choice(["", "xy"])
        self.world = World(voters, others=others)
        self.world.frames_max = self.rng.choice([1, 2, 100])
        self.fault_rate = self.rng.choice([0.01, 0.05, 0.15, 0.3])
        self.count = 0
        self.slow: set[str] = set()
        """Nodes whose disk flushes nothing for now."""
        self.world.held = lambda step: step.kind == "flush" and step.owner in self.slow

    def run(self, steps: int = 1_500) -> None:
        self.world.start_all()
        for _ in range(steps):
            if self.rng.random() < self.fault_rate:
                self.rng.choice(FAULTS)(self)
            else:
                self.step()
        self.heal()

    def step(self) -> None:
        """Take any step that can be taken; sometimes publish, sometimes let time pass."""
        world, rng = self.world, self.rng
        chance = rng.random()
        if chance < 0.1:
            self.publish()
        elif chance < 0.2:
            world.now_ms += rng.choice([10, 100, 400])
            world.tick()
        ready = [n for n, step in enumerate(world.steps) if world.is_ready(step)]
        wires = [
            ends
            for ends, wire in world.wires.items()
            if wire and not any(world.nodes[each].is_paused for each in ends)
        ]
        watches = [n for n, each in world.watches.items() if each and world.nodes[n].is_up]
        kind = rng.choice(
            ["step"] * bool(ready) + ["wire"] * bool(wires) + ["watch"] * bool(watches) or [""]
        )
        if kind == "step":
            self.perform(rng.choice(ready))
        elif kind == "wire":
            world.deliver(*rng.choice(wires))
        elif kind == "watch":
            world.watch(rng.choice(watches))

    def perform(self, number: int) -> None:
        step = self.world.steps[number]
        del self.world.steps[number]
        if not self.world.is_current(step):
            return
        if step.kind == "swap" and self.rng.random() < 10 * self.fault_rate:
            self.lose_answer(step)
        else:
            step.perform()

    def lose_answer(self, step: Step) -> None:
        """Let nobody hear what became of a swap: it happened, never does, or happens yet."""
        world, owner = self.world, step.owner
        before = len(world.steps)
        fate = self.rng.choice(["happened", "lost", "yet"])
        if fate == "happened":
            step.perform()
        while len(world.steps) > before:
            world.steps.pop()
        if fate == "yet":
            world.later("late swap", owner, lambda: self.happen(step))
        world.later("swapped", owner, lambda: world.swapped(owner, Unknown()), run=step.run)

    def happen(self, step: Step) -> None:
        before = len(self.world.steps)
        step.perform()
        while len(self.world.steps) > before:
            self.world.steps.pop()

    def publish(self) -> None:
        opened = [
            n for n in self.world.nodes.values() if n.replica is not None and n.replica.is_open
        ]
        if opened:
            # Also one that was superseded and does not know yet.
            self.count += 1
            self.world.publish(f"v{self.count}", self.rng.choice(opened).name)

    # Faults

    def crash(self) -> None:
        up = [each.name for each in self.world.nodes.values() if each.is_up]
        if up:
            self.world.crash(self.rng.choice(up))

    def start(self) -> None:
        down = [each.name for each in self.world.nodes.values() if not each.is_up]
        if down:
            self.world.start(self.rng.choice(down))

    def power(self) -> None:
        """Let the power fail for some or all of them."""
        for node in self.world.nodes.values():
            if node.is_up and self.rng.random() < 0.6:
                self.world.crash(node.name)

    def slow_down(self) -> None:
        """Have a disk flush nothing for a while, or go on."""
        self.slow ^= {self.rng.choice(list(self.world.nodes))}

    def alone(self) -> None:
        """Cut a node off from all others."""
        name = self.rng.choice(list(self.world.nodes))
        for other in self.world.nodes:
            if other != name:
                self.world.cut(name, other)

    def cut(self) -> None:
        if len(self.world.nodes) > 1:
            self.world.cut(*self.rng.sample(list(self.world.nodes), 2))

    def blink(self) -> None:
        """Break a connection, and make it anew at once."""
        if self.world.links:
            one, other = sorted(self.rng.choice(sorted(self.world.links, key=sorted)))
            self.world.unlink(one, other)
            self.world.link(one, other)

    def mend(self) -> None:
        self.world.heal()

    def pause(self) -> None:
        name = self.rng.choice(list(self.world.nodes))
        if self.world.nodes[name].is_paused:
            self.world.resume(name)
        else:
            self.world.pause(name)

    def late(self) -> None:
        """Deliver what a broken connection still had, in any order, perhaps twice."""
        for _ in range(3):
            if self.world.former:
                sender, to, data = self.rng.choice(self.world.former[-60:])
                if self.world.nodes[to].is_up:
                    self.world.hand(sender, to, data)

    def refuse(self) -> None:
        """Have a disk refuse what comes next."""
        name = self.rng.choice(list(self.world.nodes))
        if not self.world.nodes[name].is_paused:
            self.world.tell(name, "refuses", lambda it: it.append_failed("full", self.world.now_ms))

    def change(self) -> None:
        """Have a leader change the set of replicas, or hand over."""
        leader = self.world.leader()
        if leader is None or leader.is_paused:
            return
        other = ReplicaId(self.rng.choice(list(self.world.nodes)))
        kind = self.rng.choice(KINDS)
        name, now_ms = leader.name, self.world.now_ms
        self.world.tell(name, f"{kind} {other}", lambda it: getattr(it, kind)(other, now_ms))

    def rewrite(self) -> None:
        """Have a leader rewrite what is committed: it cannot be streamed any more."""
        leader = self.world.leader()
        if leader is not None and leader.replica is not None:
            end = min(leader.replica.committed_end, leader.log.flushed_end)
            start = self.rng.randint(0, end)
            leader.log.stream_start = Offset(max(leader.log.stream_start, start))

    # And then

    def heal(self) -> None:
        """Let everything work again: then the partition must, too, and nothing is lost."""
        world = self.world
        self.slow.clear()
        for name in world.nodes:
            world.resume(name)
        world.start_all()
        world.heal()
        world.wait(6 * LEASE_MS)
        leader = world.leader()
        assert leader is not None, "nobody leads"
        world.publish("last")
        world.wait(1_000)
        assert "last" in world.acked, "nothing is committed"
        record = world.record
        assert record is not None
        for name in (*record.replicas, *record.learners):
            log = world.nodes[name].log
            assert log.entries == leader.log.entries, (name, log, leader.log)
        for value, offset in world.acked.items():
            assert leader.log.entries[offset].value == value, (
                f"{value} was acknowledged and is lost"
            )
        assert {each for node in world.nodes.values() for each in node.problems} <= {"full"}


FAULTS = [
    Chaos.crash,
    Chaos.start,
    Chaos.start,
    Chaos.start,
    Chaos.power,
    Chaos.slow_down,
    Chaos.slow_down,
    Chaos.alone,
    Chaos.mend,
    Chaos.cut,
    Chaos.blink,
    Chaos.late,
    Chaos.refuse,
    Chaos.mend,
    Chaos.pause,
    Chaos.change,
    Chaos.change,
    Chaos.change,
    Chaos.rewrite,
]
