"""Random histories of streams: what the core does is what the model says, and what the docs say."""

from random import Random

from tests.streams.model import Expected, ModelStream
from waterclock.model.sections import StreamsConfig
from waterclock.streams.effects import Accept, Deliver, Effect, Refuse, TimeOut
from waterclock.streams.ring import Item
from waterclock.streams.streams import Streams
from waterclock.streams.waiters import Receiver, Sender, Waiter

NAMES = ("a", "b")
CONSUMERS = ("", "", "", "x", "y")
START_MS = 1_000_000


class History:
    """Drives a core and a model with the same events."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.core = Streams(StreamsConfig(idle_ms=10**9, consumer_idle_ms=10**9))
        self.model = {name: ModelStream() for name in NAMES}
        self.sizes = {name: self.rng.choice([0, 1, 2, 3, 8]) for name in NAMES}
        self.now_ms = START_MS
        self.waiting: list[Waiter] = []
        self.given: list[tuple[Deliver, bool]] = []
        self.sent = 0
        self.seen: dict[str, dict[int, int]] = {name: {} for name in NAMES}
        """How often each position was given to one who competes, less what was given back."""

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.rng.choices(
                [self.send, self.receive, self.leave, self.pass_time, self.resize, self.give_back],
                [10, 10, 3, 3, 1, 2],
            )[0]
            step()
            self.core.check_invariants()
        self.pass_time(10**6)
        assert self.core.waiting == 0
        assert not self.waiting

    # Events

    def send(self) -> None:
        name = self.rng.choice(NAMES)
        self.sent += 1
        expires = self.now_ms + 500 if self.rng.random() < 0.1 else 0
        sender = Sender(
            name,
            Item(b"%d" % self.sent, expires_ms=expires),
            deadline_ms=self.deadline(),
            is_blocking=self.rng.random() < 0.4,
        )
        size = self.sizes[name]
        expected = self.model[name].send(sender, size, self.now_ms)
        if not sender.is_blocking and self.rng.random() < 0.5:
            put = self.core.put(name, sender.item, now_ms=self.now_ms)
            if put is not None:
                receivers = 0 if put.given is None else 1
                effects: list[Effect] = [Accept(sender, put.position, receivers)]
                if put.given is not None:
                    effects.append(put.given)
                self.check(name, effects, expected, sender)
                return
        self.check(name, self.core.send(sender, size=size, now_ms=self.now_ms), expected, sender)

    def receive(self) -> None:
        name, consumer = self.rng.choice(NAMES), self.rng.choice(CONSUMERS)
        stream = self.core.find(name)
        after = None
        if stream is not None and stream.ring is not None and self.rng.random() < 0.2:
            after = self.rng.randint(0, stream.ring.end)
        receiver = Receiver(
            name,
            deadline_ms=self.deadline(),
            consumer=consumer,
            after=after,
            limit=self.rng.choice([1, 1, 2, 5]),
            is_confirming=bool(consumer) and self.rng.random() < 0.3,
        )
        namesakes = [
            each
            for each in self.waiting
            if isinstance(each, Receiver) and each.consumer == consumer and each.stream == name
        ]
        if consumer and namesakes and any(map(_brings_a_position, [receiver, *namesakes])):
            return  # who moves the position under others of its name gets nothing but order
        expected = self.model[name].receive(receiver, self.now_ms)
        if receiver.competes and receiver.limit == 1 and self.rng.random() < 0.5:
            taken = self.core.take(name, now_ms=self.now_ms)
            if taken is not None:
                found = Deliver(receiver, [taken.position], [taken.item], taken.missed)
                self.check(name, [found], expected, receiver)
                return
            if self.core.wait(receiver, now_ms=self.now_ms):
                self.check(name, [], expected, receiver)
                return
        self.check(name, self.core.receive(receiver, now_ms=self.now_ms), expected, receiver)

    def leave(self) -> None:
        if self.waiting:
            waiter = self.rng.choice(self.waiting)
            self.core.leave(waiter)
            self.forget(waiter)

    def pass_time(self, ms: int = 0) -> None:
        self.now_ms += ms or self.rng.choice([1, 50, 400, 2_000])
        over = [waiter for waiter in self.waiting if waiter.deadline_ms <= self.now_ms]
        effects = self.core.tick(self.now_ms)
        timed_out = [effect.waiter for effect in effects if isinstance(effect, TimeOut)]
        assert len(timed_out) == len(effects)
        assert set(timed_out) == set(over), "everyone is answered by its deadline, nobody before"
        for waiter in over:
            self.forget(waiter)

    def resize(self) -> None:
        name = self.rng.choice(NAMES)
        if self.core.find(name) is None or self.model[name].size is None:
            return
        size = self.rng.choice([1, 2, 4]) if self.model[name].size else 0
        expected = self.model[name].resize(size)
        self.check(name, self.core.resize(name, size, now_ms=self.now_ms), expected)

    def give_back(self) -> None:
        """What was given last could not be handed over: its receiver is not there any more."""
        if not self.given:
            return
        given, competed = self.given.pop()
        self.given.clear()
        name = given.receiver.stream
        expected = self.model[name].give_back(given, self.now_ms, competed=competed)
        if competed and given.sender is None:
            for position in given.positions:
                self.seen[name][position] -= 1
        effects = self.core.give_back(given, now_ms=self.now_ms)
        self.check(name, effects, expected, given.sender)

    # Checks

    def check(
        self,
        name: str,
        effects: list[Effect],
        expected: list[Expected],
        newcomer: Waiter | None = None,
    ) -> None:
        assert [_outcome(effect) for effect in effects] == expected
        self.given.clear()
        served: set[Waiter] = set()
        for effect in effects:
            match effect:
                case Deliver(receiver, positions, _, _, sender):
                    served.add(receiver)
                    if sender is not None:
                        served.add(sender)
                    competed = receiver.competes
                    self.given.append((effect, competed))
                    if competed and sender is None:
                        for position in positions:
                            times = self.seen[name].get(position, 0) + 1
                            assert times == 1, "given to two who compete"
                            self.seen[name][position] = times
                case Accept(sender):
                    served.add(sender)
                case Refuse(receiver):
                    served.add(receiver)
        if newcomer is not None and newcomer not in served:
            self.waiting.append(newcomer)
        self.waiting = [each for each in self.waiting if each not in served]

    def forget(self, waiter: Waiter) -> None:
        self.waiting.remove(waiter)
        model = self.model[waiter.stream]
        if isinstance(waiter, Sender):
            model.senders.remove(waiter)
        elif isinstance(waiter, Receiver):
            model.receivers.remove(waiter)
            model.resumed.pop(waiter, None)

    def deadline(self) -> int:
        return self.now_ms + self.rng.choice([10, 300, 3_000])


def _brings_a_position(receiver: Receiver) -> bool:
    # Whoever waits has a position; one that it brought makes it confirm.
    return receiver.is_confirming or (receiver.after is not None and receiver.queue is None)


def _outcome(effect: Effect) -> Expected:
    match effect:
        case Deliver(receiver, positions, _, _, sender) if sender is not None:
            return "meet", receiver, positions[0], sender
        case Deliver(receiver, positions, _, missed, sender):
            return "deliver", receiver, tuple(positions), missed, sender
        case Accept(sender, position, receivers):
            return "accept", sender, position, receivers
        case Refuse(receiver, missed, oldest):
            return "refuse", receiver, missed, oldest
    raise AssertionError(effect)
