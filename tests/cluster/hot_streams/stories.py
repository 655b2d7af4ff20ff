"""Stories of a hot stream from seeds. `tell(seed)` raises `Violation`, or says what happened.

python -m tests.cluster.hot_streams.stories --seed 1 --count 200
"""

import argparse
import os
from typing import NamedTuple

from tests.cluster.hot_streams.simulated import CONFIG, Violation, World
from tests.cluster.simulation.side_by_side import cpu_s, side_by_side

PLANTS = {
    "pulled messages stay": 1,
    "surplus is dropped": 1,
    "nothing is returned": 11,
    "a watch sees only what comes": 11,
    "a want is forgotten": 1,
    "no hysteresis": 1,
    "polls stay at home": 1,
}
"""Bugs, each with a seed whose story shows it."""
STEADY_MS = 60_000


class Outcome(NamedTuple):
    """What happened in a story."""

    sent: int
    delivered: int
    excused: int
    most: int
    """Partitions that there were at once."""


def tell(seed: int, plant: str = "") -> Outcome:
    """Tell one story: growth, faults under load, shrinking; then nothing may be left."""
    world = World(seed, nodes=3 + seed % 3, plant=plant)
    random = world.random
    world.rate = random.choice((30, 60, 100))
    world.poll_rate = world.rate * random.choice((0.8, 1.2))
    world.run(15_000)
    most = world.count
    if random.random() < 0.5:
        world.senders, world.pollers = random.sample(world.ring.nodes, 2)
        world.run(3_000)
    for _ in range(random.randint(0, 4)):
        _fault(world)
        world.run(random.randint(0, 4_000))
    world.run(15_000)
    most = max(most, world.count)
    world.senders = world.pollers = ""
    world.rate = random.choice((0, 2, 10))
    world.poll_rate = world.rate + random.choice((0, 20))
    world.run(random.randint(1, 25_000))
    _end(world)
    return Outcome(world.sent, len(world.delivered), len(world.excused), most)


def tell_steady(seed: int, plant: str = "") -> int:
    """Tell of one rate and no fault: the count, which is returned, moves one way if at all."""
    world = World(seed, nodes=6, plant=plant)
    world.rate = world.poll_rate = world.random.uniform(10, 100)
    world.run(5_000)
    counts = [world.count]
    for _ in range(STEADY_MS // 500):
        world.run(500)
        if world.count != counts[-1]:
            counts.append(world.count)
    if counts != sorted(counts):
        raise Violation(f"the count flaps under one rate: {counts}")
    return counts[-1]


def tell_uneven(seed: int, plant: str = "") -> None:
    """Tell of polls that are too few, all at one node: no messages wait while later ones go."""
    world = World(seed, nodes=3, plant=plant)
    world.rate = world.poll_rate = 90
    world.run(20_000)
    world.pollers = world.random.choice(world.ring.nodes)
    world.poll_rate = 25  # fewer than that node itself is sent
    world.run(3_000)
    first = {name: node.messages[0] for name, node in world.nodes.items() if node.messages}
    world.run(40_000)
    left = [name for name, message in first.items() if message in world.nodes[name].messages]
    if left:
        raise Violation(f"the messages at {left} are left to wait, and later ones go")


def _fault(world: World) -> None:
    random = world.random
    names = list(world.ring.nodes)
    match random.choice(("kill", "restart", "join", "leave", "link", "link", "order")):
        case "kill" if len(names) > 2:
            world.kill(random.choice(names))
        case "restart":
            world.restart(random.choice(names))
        case "join":
            world.join()
        case "leave" if len(names) > 2:
            world.leave(random.choice(names))
        case "order":
            for node in world.nodes.values():
                node.has_order = True
            world.run(CONFIG.up_window_ms)
            for node in world.nodes.values():
                node.has_order = False
        case _:
            world.break_link(*random.sample(names, 2))


def _end(world: World) -> None:
    """No more is sent. What there is must come to whoever asks, wherever."""
    world.rate, world.poll_rate = 0, 100
    world.run(2_000 + 100 * (world.sent - len(world.delivered)) // 10)
    world.poll_rate = 20
    world.run(5_000)
    world.judge_lost()
    world.poll_rate = 0
    world.run(30_000 + len(world.nodes) * 2 * CONFIG.down_window_ms)
    if world.count != 1:
        raise Violation(f"{world.count} partitions of a stream that nobody uses")
    held = [n.name for n in world.nodes.values() if n.is_alive and n.core.exchanges]
    if held:
        raise Violation(f"{held} still have partitions of a stream that is whole")


def tell_all(seed: int, plant: str = "") -> Outcome:
    """Tell every kind of story from one seed."""
    outcome = tell(seed, plant)
    tell_steady(seed, plant)
    tell_uneven(seed, plant)
    return outcome


def find(plant: str) -> str:
    """Return what gives a planted bug away; it must be found."""
    try:
        tell_all(PLANTS[plant], plant)
    except Violation as violation:
        return str(violation)
    raise SystemExit(f"nobody notices: {plant}")


def main() -> None:
    """Tell many stories."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--plants", action="store_true", help="plant bugs: each must be found")
    asked = parser.parse_args()
    if asked.plants:
        for plant in PLANTS:
            print(f"{plant}: {find(plant)}")
        return
    print(
        "A story is a stream of three to five nodes that grows, meets faults under load, shrinks;"
    )
    print("one of a steady rate, and one whose polls are at one node", flush=True)
    sent = most = 0
    for outcome in side_by_side(
        outcome_of, range(asked.seed, asked.seed + asked.count), asked.processes
    ):
        if isinstance(outcome, str):
            raise SystemExit(outcome)
        sent, most = sent + outcome.sent, max(most, outcome.most)
    text = f"{asked.count} stories of hot streams, {cpu_s():.0f} s of CPU, {sent} messages"
    print(f"{text}, up to {most} partitions: fine")


def outcome_of(seed: int) -> Outcome | str:
    """Tell the stories of a seed, for another process; a text says what is wrong."""
    try:
        return tell_all(seed)
    except Violation as violation:
        return f"seed {seed}: {violation}"


if __name__ == "__main__":
    main()
