"""What is done to a cluster in a trial, and within which time everything must be well again.

Times are of the LAN settings with a hundred nodes. What they are made of: news are everywhere in a
second; a failure is suspected within two or three, and believed after eight if others confirm it;
an exchange of all that is known comes every half minute, and two minutes in a large cluster.
"""

from collections.abc import Callable

from tests.cluster.simulation.network import Weather
from tests.cluster.simulation.streams import StreamCluster
from tests.cluster.simulation.trial import Trial

Play = Callable[[Trial], None]

LOSSES = (0.0, 0.01, 0.05)


SCENARIOS: dict[str, Play] = {}


def scenario(play: Play) -> Play:
    """Put a kind of trial among the others."""
    SCENARIOS[play.__name__.replace("_", "-")] = play
    return play


def played(name: str, seed: int, node_count: int | None = None) -> Trial:
    """Return the trial of a scenario and a seed, when it is over."""
    trial = Trial(seed, node_count)
    SCENARIOS[name](trial)
    return trial


def some(trial: Trial, names: list[str], share: float) -> list[str]:
    """Return some of the nodes, one at least."""
    return trial.rng.sample(names, max(1, int(len(names) * share)))


def lossy(trial: Trial) -> None:
    trial.weather(Weather(loss=trial.rng.choice(LOSSES)))


@scenario
def join(trial: Trial) -> None:
    """A node joins by one that it knows."""
    lossy(trial)
    names = trial.settled()
    trial.run(trial.rng.randrange(20_000))
    trial.start("new", [trial.rng.choice(names)])
    trial.agree("join", 3_000)


@scenario
def start(trial: Trial) -> None:
    """All nodes are started within a second, and know one of them."""
    lossy(trial)
    names = [f"n{number}" for number in range(1, trial.node_count + 1)]
    for name in names:
        trial.network.add(name)
        trial.network.kill(name)
    for name in names:
        trial.start(name, ["n1"])
    trial.agree("start", 5_000)


@scenario
def leave(trial: Trial) -> None:
    """A node says goodbye."""
    lossy(trial)
    names = trial.settled()
    trial.run(trial.rng.randrange(20_000))
    since_ms = trial.network.now_ms
    trial.leave(trial.rng.choice(names))
    trial.agree("leave", 3_000, since_ms=since_ms)


@scenario
def failure(trial: Trial) -> None:
    """A node is killed, or two or three at once."""
    lossy(trial)
    names = trial.settled()
    trial.run(trial.rng.randrange(20_000))
    for name in trial.rng.sample(names, trial.rng.choice([1, 1, 2, 3])):
        trial.kill(name)
    trial.agree("failure", 25_000)


@scenario
def partition(trial: Trial) -> None:
    """Some nodes, or half of them, are cut off for a minute."""
    lossy(trial)
    names = trial.settled()
    trial.run(trial.rng.randrange(20_000))
    trial.split(some(trial, names, trial.rng.choice([0.01, 0.1, 0.5])))
    trial.run(60_000)
    trial.heal()
    trial.agree("heal", 60_000)


@scenario
def restart(trial: Trial) -> None:
    """All nodes are killed and started anew within seconds, at times with clocks set back."""
    lossy(trial)
    names = trial.settled()
    trial.run(trial.rng.randrange(20_000))
    for name in names:
        trial.kill(name)
    trial.run(trial.rng.choice([0, 1_000, 30_000]))
    is_set_back = trial.rng.random() < 0.3
    for name in trial.rng.sample(names, len(names)):
        trial.start(name, names[:3], incarnation=5 if is_set_back else None)
        trial.run(trial.rng.randrange(50))
    trial.agree("restart", 20_000)


@scenario
def rolling_restart(trial: Trial) -> None:
    """One node after the other is killed and started anew, some with their clocks set back."""
    lossy(trial)
    names = trial.settled()
    for name in some(trial, names, 0.2):
        trial.kill(name)
        trial.run(trial.rng.choice([500, 5_000, 25_000]))
        trial.start(name, names[:3], trial.rng.choice([None, None, 5]))
        trial.run(trial.rng.randrange(3_000))
    trial.agree("rolling restart", 20_000)


@scenario
def pauses(trial: Trial) -> None:
    """Some nodes are stopped again and again, for a moment or for longer than it takes to be given
    up."""
    lossy(trial)
    names = trial.settled()
    slow = some(trial, names, 0.1)
    for _ in range(8):
        for name in slow:
            trial.pause(name, trial.rng.choice([100, 2_000, 9_000, 12_000, 20_000]))
        trial.run(trial.rng.randrange(5_000, 25_000))
    trial.run(25_000)
    trial.agree("pauses", 45_000)


@scenario
def sluggish(trial: Trial) -> None:
    """Some nodes run for a moment only between one stop and the next, and blame nobody for it."""
    lossy(trial)
    names = trial.settled()
    slow = some(trial, names, 0.1)
    for _ in range(12):
        length_ms = trial.rng.randrange(6_000, 12_000)
        for name in slow:
            trial.pause(name, length_ms - trial.rng.randrange(20, 300))
        trial.run(length_ms)
    trial.run(12_000)
    trial.agree("sluggish", 45_000)


@scenario
def missed_news(trial: Trial) -> None:
    """A node joins while nothing reaches another one; that one learns of it by an exchange."""
    lossy(trial)
    names = trial.settled()
    trial.cut_inbound(trial.rng.choice(names))
    trial.start("new", names[:1])
    trial.run(2_000)
    trial.heal()
    trial.agree("missed news", 120_000)


@scenario
def one_way(trial: Trial) -> None:
    """A node hears and is not heard, or is heard and does not hear; others must not suffer."""
    lossy(trial)
    names = trial.settled()
    victims = trial.rng.sample(names, trial.rng.choice([1, 3]))
    (trial.cut_outbound if trial.rng.random() < 0.5 else trial.cut_inbound)(*victims)
    trial.run(trial.rng.choice([5_000, 20_000, 60_000]))
    trial.heal()
    trial.agree("one way", 60_000)


@scenario
def loss(trial: Trial) -> None:
    """Every twentieth packet is lost for ten minutes: nobody is taken for dead."""
    trial.weather(Weather(loss=0.05))
    trial.settled()
    trial.run(600_000)
    trial.judge()


@scenario
def idle(trial: Trial) -> None:
    """Nothing happens for five minutes, but for a join before."""
    names = trial.settled()
    trial.start("new", names[:1])
    trial.run(120_000)
    trial.judge_silence(300_000, 1_000)
    trial.judge()


@scenario
def storm(trial: Trial) -> None:
    """All of this by chance, one over the other, in clusters of 50 to 200; then it is calm."""
    rng = trial.rng
    names = trial.settled(trial.node_count if trial.is_sized else rng.randrange(50, 201))
    for _ in range(rng.randrange(4, 12)):
        trial.weather(
            Weather(
                delay_ms=rng.choice([(1, 5), (10, 80)]),
                loss=rng.choice((0.0, 0.05, 0.2)),
                twice=rng.choice((0.0, 0.1)),
                late=rng.choice((0.0, 0.1)),
                broken=rng.choice((0.0, 0.05, 0.3)),
            )
        )
        fault(trial, names)
        trial.run(rng.randrange(1_000, 40_000))
    trial.weather(Weather())
    trial.heal()
    for name in names:
        if not trial.network.nodes[name].is_up:
            trial.start(name, names[:3])
    trial.agree("storm", 90_000)


def fault(trial: Trial, names: list[str]) -> None:
    """Let one thing go wrong, or be changed by its operators."""
    rng, nodes = trial.rng, trial.network.nodes
    up = [name for name in names if nodes[name].is_up and not nodes[name].is_paused]
    match rng.randrange(8):
        case 0:
            for name in some(trial, up, rng.choice([0.01, 0.1])):
                trial.kill(name)
        case 1:
            for name in names:
                if not nodes[name].is_up:
                    trial.start(name, names[:3], rng.choice([None, 5]))
        case 2:
            for name in some(trial, up, rng.choice([0.01, 0.1])):
                trial.pause(name, rng.choice([1_000, 9_000, 30_000]))
        case 3:
            trial.split(some(trial, names, rng.choice([0.02, 0.5])))
        case 4:
            trial.cut_outbound(*some(trial, names, 0.02))
        case 5:
            trial.cut_inbound(*some(trial, names, 0.02))
        case 6:
            trial.heal()
        case 7:
            names.append(f"n{len(names) + 1}")
            trial.start(names[-1], rng.sample(up, min(3, len(up))))


@scenario
def moving_streams(trial: Trial) -> None:
    """Nodes with streams join and leave, and nothing fails: nothing is lost, or waited for long."""
    rng = trial.rng
    trial.weather(Weather(loss=rng.choice((0.0, 0.01))))
    names = trial.settled(rng.randrange(3, 9))
    streams = StreamCluster(trial, is_orderly=True)
    for name in names:
        streams.adopt(name)
    trial.run(5_000)
    for _ in range(rng.randrange(4, 10)):
        staying = streams.staying()
        if len(staying) > 2 and rng.random() < 0.5:
            streams.leave(rng.choice(staying))
        else:
            names.append(f"n{len(names) + 1}")
            streams.add(names[-1], rng.sample(staying, 2))
        trial.run(rng.choice([100, 1_000, 6_000]))
    trial.agree("heal", 20_000)
    streams.settle(20_000, blocked_ms_max=8_000)


@scenario
def stormy_streams(trial: Trial) -> None:
    """Nodes with streams are killed, stopped and cut off, too: no message is received twice."""
    rng = trial.rng
    names = trial.settled(rng.randrange(3, 9))
    streams = StreamCluster(trial, is_orderly=False)
    for name in names:
        streams.adopt(name)
    trial.run(5_000)
    for _ in range(rng.randrange(4, 12)):
        staying = streams.staying()
        match rng.randrange(8):
            case 0 | 1 if len(staying) > 2:
                streams.kill(rng.choice(staying))
            case 2 if len(staying) > 2:
                streams.leave(rng.choice(staying))
            case 3:
                trial.pause(rng.choice(staying), rng.choice([1_000, 6_000, 30_000]))
            case 4:
                trial.split(rng.sample(staying, max(1, len(staying) // 3)))
            case 5:
                trial.heal()
            case 6:
                dead = [name for name in names if name not in streams.nodes]
                streams.add(rng.choice([*dead, f"n{len(names) + 1}"]), staying[:2])
                names = sorted({*names, *streams.nodes})
            case _:
                trial.weather(Weather(loss=rng.choice((0.0, 0.05))))
        trial.run(rng.choice([100, 2_000, 10_000, 40_000]))
    trial.heal()
    trial.run(30_000)  # until nobody is stopped any more
    trial.agree("heal", 60_000)
    streams.settle(60_000, blocked_ms_max=120_000)
