"""One seeded history of a whole node: what is asked of it, what befalls it, and what it answers.

Messages are published now and for later, with ids that repeat, under several keys, with and without
`allowDuplicate` and an expiry; they are cancelled, moved, listed, fired and consumed; logs are
written anew; the node is restarted, killed in the midst of things and stopped for a while; its wall
clock is set. Every answer is held against the model. In the end the faults cease, and whatever is
owed must come.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, ClassVar

from tests.kit.clock import ManualClock
from tests.simulation.group_model import Handed, Lease
from tests.simulation.members import TOPIC, WAYS_TO_LEAVE, Consumer, Polling, Streaming
from tests.simulation.message_model import PARTITIONS, Messages
from tests.simulation.requests import DrawnRequests, TopicRequest
from tests.simulation.simulated_node import Answer, SimulatedNode

STEPS = 40
STEPS_MS = [400, 4_000, 95_000, 3_600_000]
PASSES_MS = [20, 120, 700, 3_000, 9_000]
PAUSES_MS = [1_500, 4_500, 7_000, 25_000]
ANSWERS = ["ack", "ack", "ack", "nack", "giveBack", "reject", "extend"]


class NodeHistory:
    """Runs one history. Whatever breaks a guarantee raises AssertionError."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.node = SimulatedNode(self.clock)
        self.messages = Messages()
        self.drawn = DrawnRequests(self.random, self.clock, self.messages)
        self.consumers: list[Consumer] = [
            Polling(self.node, self.messages),
            Streaming(self.node, self.messages),
        ]
        self.story: list[str] = []
        """What was done, for people."""

    def run(self, steps: int = STEPS) -> None:
        """Live through so many steps, and then to the end."""
        try:
            self._begin()
            for _ in range(steps):
                self.step()
            self.finish()
        finally:
            self.node.close()

    def _begin(self) -> None:
        made = self.node.call("POST", "/topics", {"topic": TOPIC, "partitions": PARTITIONS})
        assert made.status in (200, 201), made
        for consumer in self.consumers:
            self.take(consumer, 1)  # the groups begin here

    def step(self) -> None:
        """Do one of the things that may be done."""
        chosen = self.random.choices(list(self.ACTIONS), list(self.ACTIONS.values()))[0]
        self.note(chosen.__name__)
        chosen(self)
        if self.random.random() < 0.6:
            self.look()

    def note(self, what: object) -> None:
        """Keep in mind what is done."""
        wall, steady = self.clock.now_ms(), self.clock.monotonic_ms()
        self.story.append(f"{wall} {steady:>7} {what}")

    def during(self, work: Callable[[], Any]) -> Any:
        """Do something while everything runs; the model is told of the time it took first."""
        wall, steady = self.clock.now_ms(), self.clock.monotonic_ms()
        done = work()
        self._passed(wall, steady)
        for consumer in self.consumers:
            self._handed(consumer, consumer.heard())
        return done

    def _passed(self, wall: int, steady: int) -> None:
        self.messages.time_passed(wall, self.clock.now_ms(), has_run=True)
        for consumer in self.consumers:
            consumer.model.time_passed(steady, self.clock.monotonic_ms())

    # Messages

    def publish(self) -> None:
        """Publish."""
        self.fulfil(self.drawn.publishing())

    def publish_at_once(self) -> None:
        """Publish several messages, each for itself and none after the other."""
        requests = [self.drawn.publishing() for _ in range(self.random.randrange(2, 5))]
        answers = self.during(lambda: self.node.wait(self._ask_all(requests)))
        # Which of them was first, if one repeats another, only the answers tell.
        for wanted, answer in sorted(zip(requests, answers, strict=True), key=_repeats):
            self._take_answer(wanted, answer)

    async def _ask_all(self, requests: list[TopicRequest]) -> list[Answer]:
        paths = [f"/topics/{TOPIC}/{wanted.verb}" for wanted in requests]
        asked = zip(paths, requests, strict=True)
        return await asyncio.gather(*(self.node.ask("POST", p, w.body) for p, w in asked))

    def cancel(self) -> None:
        """Cancel by id, with a key or without, or by position."""
        self.fulfil(self.drawn.cancelling())

    def cancel_by_key(self) -> None:
        """Cancel by key."""
        self.fulfil(self.drawn.cancelling_by_key())

    def reschedule(self) -> None:
        """Move, named in the same ways."""
        self.fulfil(self.drawn.rescheduling())

    def fulfil(self, wanted: TopicRequest) -> None:
        """Ask for something, and hold the answer against the model."""
        path = f"/topics/{TOPIC}/{wanted.verb}"
        answer = self.during(lambda: self.node.call("POST", path, wanted.body))
        self._take_answer(wanted, answer)

    def _take_answer(self, wanted: TopicRequest, answer: Answer) -> None:
        self.note(f"  {wanted.verb} {wanted.body} -> {answer.status} {answer.body}")
        assert answer.status in (200, 201), answer
        wanted.answered(answer.body)

    def look(self) -> None:
        """Compare the list of pending messages."""
        path = f"/topics/{TOPIC}/scheduled"
        answer = self.during(lambda: self.node.call("GET", path, limit=1_000, values="true"))
        assert answer.status == 200, answer
        found = {
            int(one["value"]): (one["partition"], one["offset"], one["dueMs"])
            for one in answer.body["scheduled"]
        }
        assert len(found) == len(answer.body["scheduled"]), f"listed twice: {answer}"
        self.messages.listed(found, self.clock.now_ms())

    # Consumers

    def consume(self) -> None:
        """Take messages."""
        consumer = self.random.choice(self.consumers)
        limit = self.random.choice([1, 3, 20])
        self.take(consumer, limit)

    def take(self, consumer: Consumer, limit: int) -> int:
        """Have a consumer take messages; return how many came."""
        found = self.during(lambda: consumer.take(limit))
        self._handed(consumer, found)
        return len(found)

    def listen(self) -> None:
        """Have a consumer wait for messages while other things happen."""
        consumer = self.random.choice(self.consumers)
        self.during(lambda: consumer.listen(self.random.choice([1, 5])))

    def _handed(self, consumer: Consumer, found: list[Handed]) -> None:
        if found:
            self.note(f"  {consumer.model.name} got {[(h.number, str(h.lease)) for h in found]}")
        for handed in found:
            consumer.model.delivered(handed)

    def answer(self) -> None:
        """Say something of messages that are held, or were."""
        consumer = self.random.choice(self.consumers)
        held = list(consumer.model.held())
        kind = self.random.choice(ANSWERS)
        leases = [lease for lease in held if self.random.random() < 0.7]
        over = [lease for lease in consumer.model.leases if lease not in held]
        if not consumer.names_attempts:
            over = [lease for lease in over if lease[:3] not in {one[:3] for one in held}]
        if over and self.random.random() < 0.3:
            leases.append(self.random.choice(over))
        self.tell(consumer, kind, leases)

    def tell(self, consumer: Consumer, kind: str, leases: list[Lease]) -> None:
        """Have a consumer say something of messages."""
        if leases:
            self.note(f"  {consumer.model.name} {kind} {list(map(str, leases))}")
            self.during(lambda: consumer.answer(kind, leases))

    def leave(self) -> None:
        """Have a consumer go, in good order or not."""
        consumer = self.random.choice(self.consumers)
        how = self.random.choice(WAYS_TO_LEAVE)
        self.note(f"  {consumer.model.name} leaves: {how}")
        self.during(lambda: self.node.run_turns(10))  # what is on its way comes before
        self.during(lambda: consumer.leave(how))

    # Time

    def pass_time(self) -> None:
        """Let time pass."""
        passed_ms = self.random.choice(PASSES_MS)
        self.during(lambda: self.node.pass_time(passed_ms))

    def set_clock(self, by_ms: int | None = None) -> None:
        """Set the wall clock, forwards or back."""
        if by_ms is None:
            by_ms = self.random.choice(STEPS_MS) * self.random.choice([-1, 1])
        self.note(f"  by {by_ms}")
        self.clock.step(by_ms)
        self.messages.was_set_back |= by_ms < 0
        now_ms = self.clock.now_ms()
        self.messages.time_passed(now_ms, now_ms, has_run=False)
        for consumer in self.consumers:
            consumer.model.clock_was_set()

    def come_close(self) -> None:
        """Let the moment come at which a message is due, or nearly."""
        due = [m.due_ms for m in self.messages.all if m.may_be_pending]
        if due:
            wanted_ms = self.random.choice(due) + self.random.choice([-60, -3, 0, 1, 99, 150])
            before_ms = self.random.choice([0, 1_900])  # or the timers have no time to load it
            self.set_clock(wanted_ms - before_ms - self.clock.now_ms())
            self.during(lambda: self.node.pass_time(before_ms))
            if self.random.random() < 0.6:
                self.node.look_at_the_clock(TOPIC)
            self.during(lambda: self.node.run_turns(self.random.choice([0, 1, 2, 10])))
            self.look()

    def pause(self) -> None:
        """Stop the node for a while, as SIGSTOP does, or a lid that is closed."""
        paused_ms = self.random.choice(PAUSES_MS)
        self.note(f"  for {paused_ms}")
        self.clock.advance(paused_ms)
        now_ms = self.clock.now_ms()
        self.messages.time_passed(now_ms, now_ms, has_run=False)
        for consumer in self.consumers:
            consumer.model.paused(paused_ms, self.clock.monotonic_ms())
        self.during(lambda: self.node.run_turns(20))

    # The node

    def compact(self) -> None:
        """Write the logs anew without what nobody needs."""
        by_key = self.random.random() < 0.3
        self.messages.was_compacted = True
        self.during(lambda: self.node.compact(TOPIC, by_key=by_key))

    def restart(self) -> None:
        """Stop and start the node in good order."""
        self.during(self.node.stop)
        self.during(self.node.start)
        for consumer in self.consumers:
            consumer.model.lost_member()
            consumer.restarted()

    def kill_in_the_midst(self) -> None:
        """Kill the node while it works on a request, which may then have been done or not."""
        wanted = self.random.choice(self.drawn.kinds)()
        request = self.node.begin("POST", f"/topics/{TOPIC}/{wanted.verb}", wanted.body)
        self.during(lambda: self.node.pass_time(self.random.choice([0, 0, 1, 2, 3])))
        self.during(lambda: self.node.run_turns(self.random.randrange(12)))
        if request.done():
            self._take_answer(wanted, request.result())
            self.kill()
        else:
            self.note(f"  {wanted.verb} {wanted.body} -> nothing")
            self.kill()
            request.cancel()
            wanted.unanswered()
            self.look()  # before time passes: what was moved, and what was not

    def kill(self) -> None:
        """Kill the node."""
        self.during(self.node.kill)
        for consumer in self.consumers:
            consumer.model.killed()
            consumer.restarted()
        self.during(self.node.start)

    # In the end

    def finish(self) -> None:
        """Let everything come that is owed, and see that it does."""
        self.note("finish")
        last_ms = max((m.due_ms for m in self.messages.all if m.may_be_pending), default=0)
        self.set_clock(max(0, last_ms + 1 - self.clock.now_ms()))
        self.during(lambda: self.node.pass_time(3_000))
        self.look()
        quiet = 0
        for _ in range(100):
            quiet += 1
            for consumer in self.consumers:
                quiet = 0 if self.take(consumer, 100) else quiet
                self.tell(consumer, "ack", list(consumer.model.held()))
            if quiet >= 3 and not any(c.model.is_owed() for c in self.consumers):
                break
            self.during(lambda: self.node.pass_time(300))
        self._check_dead_letters()

    def _check_dead_letters(self) -> None:
        path = f"/topics/{TOPIC}/dead-letters"
        answer = self.node.call("GET", path, limit=1_000)
        assert answer.status in (200, 404), answer
        dead_letters = answer.body.get("deadLetters", [])
        for consumer in self.consumers:
            mine = [one for one in dead_letters if one["group"] == consumer.model.name]
            reasons = {int(one["value"]): one["reason"] for one in mine}
            assert len(reasons) == len(mine), f"a dead letter came twice: {dead_letters}"
            consumer.model.check_end(reasons)

    ACTIONS: ClassVar[dict[Callable[["NodeHistory"], None], int]] = {
        publish: 19,
        publish_at_once: 2,
        cancel: 14,
        cancel_by_key: 1,
        reschedule: 8,
        consume: 12,
        listen: 3,
        answer: 12,
        pass_time: 10,
        come_close: 8,
        set_clock: 4,
        pause: 4,
        leave: 4,
        compact: 4,
        restart: 1,
        kill: 1,
        kill_in_the_midst: 3,
    }


def _repeats(answered: tuple[TopicRequest, Answer]) -> int:
    """Return how many messages of an answer were there before."""
    body = answered[1].body
    return sum(not one["isNew"] for one in body.get("messages", [body]))
