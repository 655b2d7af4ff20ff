"""Random histories of a group on real logs: members come, go, die and answer; the clock is turned
and set; retention takes the beginning of the log; the node is paused, saved, killed and opened
again. What each member gets is checked against what it must get, and at the end every
message must be accounted for.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.kit.clock import ManualClock
from tests.node.consuming import GROUPS, Consuming, Member, consuming
from tests.node.delivery_model import Fact, Model, Position
from tests.node.hosts import START_MS
from waterclock.model.clock import PAUSE_MS, SETTLE_MS
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import DeliveryConfig, LogConfig
from waterclock.model.units import KIB
from waterclock.model.views import TopicSettings
from waterclock.node.groups.cleaner import GroupCleaner
from waterclock.node.groups.outbound import Assigned, Delivery, Lost
from waterclock.node.groups.session import AnswerKind
from waterclock.storage.rewrite import Wanted, rewrites

PARTITIONS = 2
MAX_RETRIES = 1
DELIVERY = DeliveryConfig(
    ack_timeout_ms=1_000,
    max_retries=MAX_RETRIES,
    retry_delay_ms=100,
    retry_delay_ms_max=100,
    retry_jitter_percent=0,
    unacked_max=8,
    runs_max=12,
)
LOG = LogConfig(segment_bytes=64 * KIB, preallocate_bytes=4 * KIB)
NAMES = st.sampled_from(["ann", "bob", "cid"])


class DeliveryHistory(RuleBasedStateMachine):
    delivery = DELIVERY

    def __init__(self) -> None:
        super().__init__()
        # In memory where there is such a place: what a disk may do is proven elsewhere.
        shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = Path(tempfile.mkdtemp(prefix="waterclock-history-", dir=shm))
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock(START_MS)
        self.away_ms = 0
        """How long the node did not run, and the moments after that it reads what was sent."""
        self.back_ms = -PAUSE_MS - SETTLE_MS
        """When that was last over: what follows at once is not forgiven."""
        self.facts: dict[Position, Fact] = {}
        self.models: dict[str, Model] = {}
        self.gone: list[Model] = []
        self.incarnation = 0
        self.highest: dict[int, int] = {}
        """The last offset that was delivered for the first time, in this run."""
        self.wait(self.open())

    # The node

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def do(self, act: Callable[..., object], *args: object, **options: object) -> None:
        """Call something that belongs into the loop."""

        async def acting() -> None:
            act(*args, **options)

        self.wait(acting())

    async def open(self) -> None:
        opened: asyncio.Future[Consuming] = self.loop.create_future()
        self.stop = asyncio.Event()
        self.running = self.loop.create_task(self.run(opened))
        self.c = await opened
        self.cleaner = GroupCleaner(self.c.groups, GROUPS, self.clock)
        settings = TopicSettings(partitions=PARTITIONS)
        await self.c.hosts.topics.create("t", settings, if_absent=True)

    async def run(self, opened: "asyncio.Future[Consuming]") -> None:
        async with consuming(
            self.folder, clock=self.clock, delivery=self.delivery, groups=GROUPS, log=LOG
        ) as c:
            opened.set_result(c)
            await self.stop.wait()

    async def close(self) -> None:
        self.stop.set()
        await self.running

    def owner(self, partition: int) -> Member | None:
        session = self.c.host().partitions[partition].session
        models = [m for m in self.models.values() if m.member.session is session]
        return models[0].member if models else None

    def is_valid(self, model: Model, place: Position) -> bool:
        """Tell whether a session still owns what it holds."""
        generation, _ = model.held[place]
        where = self.c.host().partitions[place[0]]
        is_owner = where.session is model.member.session
        return is_owner and where.cursor.generation == generation

    def now_ms(self) -> int:
        """Return for how long the node has run."""
        return self.clock.monotonic_ms() - self.away_ms

    def steady(self, wall_ms: int) -> int:
        """Return when that is by the monotonic clock, if nobody sets the wall clock either."""
        return wall_ms - self.clock.now_ms() + self.now_ms()

    # What happens to messages

    def fail(self, place: Position) -> None:
        fact = self.facts[place]
        fact.failed_min += 1
        fact.failed_max += 1
        if fact.failed_min > MAX_RETRIES:
            fact.is_dead = True

    def expire(self) -> None:
        """Let leases end that end now, and members die that were silent for too long."""
        now_ms = self.now_ms()
        for model in self.models.values():
            for place, (_, deadline_ms) in list(model.held.items()):
                if deadline_ms <= now_ms and self.is_valid(model, place):
                    self.fail(place)
                    del model.held[place]
        heard = self.c.host()._group._heard_ms if self.models else {}
        for name, ms in heard.items():
            silent_ms = self.c.host()._clock.now_ms() - ms
            if silent_ms >= GROUPS.session_timeout_ms and name in self.models:
                self.lose(name)

    def lose(self, name: str) -> None:
        """Take a member for dead. What it holds first of each partition counts as failed, if that
        is counted at all."""
        model = self.models.pop(name)
        valid = [place for place in model.held if self.is_valid(model, place)]
        for partition in range(PARTITIONS if self.delivery.count_lost_owners else 0):
            mine = [place for place in valid if place[0] == partition]
            if mine:
                self.fail(min(mine))
        self.gone.append(model)

    async def settle(self) -> None:
        self.expire()
        await self.c.settle()

    def receive(self, model: Model) -> None:
        self.do(model.member.take)
        new, model.taken = model.member.out[model.taken :], len(model.member.out)
        for item in new:
            match item:
                case Assigned(partition, generation, _):
                    model.owned.add((partition, generation))
                case Lost(partition, generation):
                    model.owned.remove((partition, generation))
                    for place in [p for p in model.held if p[0] == partition]:
                        del model.held[place]
                case Delivery():
                    self.check_delivery(model, item)
                case _:
                    pass
        if any(isinstance(item, Delivery) for item in new):
            assert len(model.held) <= model.credit_max, "beyond credit"
        model.credit_max = model.member.session.credit.messages_max

    def check_delivery(self, model: Model, delivery: Delivery) -> None:
        partition, generation = delivery.partition, delivery.generation
        assert (partition, generation) in model.owned, "not told that it is the owner"
        where = self.c.host().partitions[partition]
        assert where.session is model.member.session, "not the owner"
        assert where.cursor.generation == generation, "not the owner any more"
        assert delivery.deadline_ms > self.clock.now_ms()
        offsets = [o for start, end in delivery.messages.ranges for o in range(start, end)]
        values = delivery.messages.rows().column("value").to_pylist()
        assert len(offsets) == len(values) > 0
        for offset, value in zip(offsets, values, strict=True):
            fact = self.facts[partition, offset]
            assert fact.value == value, "another message"
            assert not fact.is_done, "done, and delivered again"
            assert not fact.is_dead, "dead, and delivered again"
            assert fact.expires_ms is None or self.clock.now_ms() < fact.expires_ms, "too late"
            failed = delivery.attempt - 1
            assert fact.failed_min <= failed <= fact.failed_max, (failed, fact)
            fact.failed_min = fact.failed_max = failed
            for other in self.models.values():
                if (partition, offset) in other.held:
                    assert not self.is_valid(other, (partition, offset)), "held by two"
            if fact.seen_in != self.incarnation and not failed and not fact.was_given_back:
                assert offset > self.highest.get(partition, -1), "not in log order"
                self.highest[partition] = offset
            fact.seen_in = self.incarnation
            model.held[partition, offset] = generation, self.steady(delivery.deadline_ms)

    # Rules

    @initialize(counts=st.lists(st.integers(0, 7), min_size=2, max_size=2), members=st.sets(NAMES))
    def begin(self, counts, members):
        """Begin in the midst of things: histories are short."""
        for partition, count in enumerate(counts):
            if count:
                self.publish(partition, count, "now")
        for name in sorted(members):
            self.join(name, 8)
        self.read_all()

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        count=st.integers(1, 7),
        kind=st.sampled_from(["now", "now", "now", "later", "expiring"]),
    )
    def publish(self, partition, count, kind):
        now_ms = self.clock.now_ms()
        due_ms = Millis(now_ms + 10**9) if kind == "later" else None
        expires_ms = now_ms + 700 if kind == "expiring" else None
        headers = {"wc-expires-ms": b"%d" % expires_ms} if expires_ms else None
        store = self.c.hosts.topics.get("t").partition(partition).store
        base = store.end
        values = [b"%d/%d" % (partition, base + n) for n in range(count)]
        messages = [Message(value, due_ms=due_ms, headers=headers) for value in values]
        if kind != "later":
            for number, value in enumerate(values):
                self.facts[partition, base + number] = Fact(value, expires_ms)
        self.wait(self.c.send(messages, partition))
        self.wait(self.settle())

    @rule(name=NAMES, credit=st.integers(0, 12))
    def join(self, name, credit):
        if name in self.models:
            self.lose(name)

        async def joined() -> Member:
            session = await self.c.groups.open_session(
                "t", "g", member=name, credit=(credit, 1 << 20)
            )
            return Member(session)

        self.models[name] = Model(self.wait(joined()), credit)
        self.wait(self.settle())

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def read(self, data):
        self.receive(self.models[data.draw(st.sampled_from(sorted(self.models)))])

    @precondition(lambda self: self.models)
    @rule()
    def read_all(self):
        for model in self.models.values():
            self.receive(model)

    @precondition(lambda self: any(model.held for model in self.models.values()))
    @rule(
        data=st.data(),
        kind=st.sampled_from([AnswerKind.ACK] * 4 + list(AnswerKind)[1:]),
        is_strange=st.sampled_from([False] * 5 + [True]),
    )
    def answer(self, data, kind, is_strange):
        busy = sorted(name for name, model in self.models.items() if model.held)
        model = self.models[data.draw(st.sampled_from(busy))]
        chosen = data.draw(st.sets(st.sampled_from(sorted(model.held)), min_size=1))
        partition = min(chosen)[0]
        mine = sorted(offset for number, offset in chosen if number == partition)
        generation = model.held[partition, mine[0]][0]
        named = [(offset, offset + 1) for offset in mine]
        if is_strange:
            named.append((10**6, 10**6 + 1))
        is_valid = self.is_valid(model, (partition, mine[0]))
        refused_before = self.c.host().counters.refused
        at_ms = self.clock.now_ms() + 300 if kind is not AnswerKind.EXTEND else 10**15
        if kind is AnswerKind.EXTEND:
            at_ms = self.clock.now_ms() + 2_000
        self.do(model.member.session.answer, kind, partition, generation, named, at_ms)
        is_refused = self.c.host().counters.refused > refused_before
        assert is_refused == (is_strange or not is_valid)
        for offset in mine:
            self.settle_answer(model, (partition, offset), kind, at_ms, is_valid=is_valid)
        self.wait(self.settle())

    def settle_answer(self, model, place, kind, at_ms, *, is_valid):
        fact = self.facts[place]
        if not is_valid:
            del model.held[place]
            return
        if kind is AnswerKind.EXTEND:
            model.held[place] = model.held[place][0], self.steady(at_ms)
            return
        del model.held[place]
        if kind is AnswerKind.ACK:
            fact.is_done = fact.was_acked = True
        elif kind is AnswerKind.NACK:
            self.fail(place)
        elif kind is AnswerKind.GIVE_BACK:
            fact.was_given_back = True
        else:
            fact.is_dead = True

    @precondition(lambda self: self.models)
    @rule(
        data=st.data(),
        kind=st.sampled_from(AnswerKind),
        partition=st.integers(0, PARTITIONS - 1),
        offsets=st.sets(st.integers(0, 9), min_size=1),
    )
    def answer_for_what_is_not_held(self, data, kind, partition, offsets):
        """Say something of messages that are done, fail, are others', or are queued."""
        model = self.models[data.draw(st.sampled_from(sorted(self.models)))]
        named = [(o, o + 1) for o in sorted(offsets) if (partition, o) not in model.held]
        generation = self.c.host().partitions[partition].cursor.generation
        if named and generation is not None:
            refused_before = self.c.host().counters.refused
            self.do(model.member.session.answer, kind, partition, generation, named, 1)
            assert self.c.host().counters.refused > refused_before
            self.wait(self.settle())

    @precondition(lambda self: self.models)
    @rule(data=st.data(), credit=st.integers(0, 12))
    def set_credit(self, data, credit):
        model = self.models[data.draw(st.sampled_from(sorted(self.models)))]
        self.do(model.member.session.set_credit, credit, 1 << 20)
        model.credit_max = max(model.credit_max, credit)
        self.wait(self.settle())

    @precondition(lambda self: self.models)
    @rule(data=st.data(), is_clean=st.booleans())
    def close_session(self, data, is_clean):
        name = data.draw(st.sampled_from(sorted(self.models)))
        model = self.models[name]
        if is_clean:
            del self.models[name]
            self.gone.append(model)
        else:
            self.lose(name)
        self.do(model.member.session.close, clean=is_clean)
        self.wait(self.settle())

    @rule(passed_ms=st.sampled_from([50, 100, 300, 1_000, 3_000]), all_beat=st.booleans())
    def pass_time(self, passed_ms, all_beat):
        for _ in range(0, passed_ms, 50):
            self.clock.advance(50)
            self.c.groups.clock.pulse(0)
        if all_beat:
            for model in self.models.values():
                self.do(model.member.session.heartbeat)
        self.wait(self.settle())

    @precondition(lambda self: self.now_ms() - self.back_ms >= PAUSE_MS + SETTLE_MS)
    @rule(away_ms=st.sampled_from([PAUSE_MS, 2_000, 60_000]))
    def pause(self, away_ms):
        """Stop the node; members go on, and what they say meanwhile waits to be read."""
        self.c.groups.clock.pulse(0)
        for ms in (away_ms, SETTLE_MS):
            self.clock.advance(ms)
            self.away_ms += ms
            self.wait(self.settle())
            self.c.groups.clock.pulse(0)
        self.back_ms = self.now_ms()
        endings = [model.member.session.ending for model in self.models.values()]
        assert not any(endings), "taken for dead by who was away itself"

    @rule(step_ms=st.sampled_from([-5_000, -500, 500, 5_000]))
    def set_clock(self, step_ms):
        self.clock.step(step_ms)
        self.wait(self.settle())

    @precondition(lambda self: self.models)
    @rule(partition=st.integers(0, PARTITIONS - 1))
    def retain(self, partition):
        """Have retention take all of a partition, read or not."""
        consumed = self.c.host().partitions[partition]
        store, cursor = consumed.log.store, consumed.cursor
        held = {offset for low, high, _ in cursor._leases.leased for offset in range(low, high)}
        start = store.end
        taken = 0
        for (number, offset), fact in self.facts.items():
            is_taken = number == partition and offset not in cursor._tracker
            taken += is_taken and offset not in held and not fact.is_trimmed
            fact.is_trimmed |= is_taken
        missed = consumed.missed

        async def retain() -> None:
            store.roll(self.clock.now_ms())
            await self.cleaner.trim(consumed.host, start)
            assert consumed.missed - missed == taken, "what was missed is not what was told"
            for job in rewrites(store, Wanted(keep_from=start), now_ms=self.clock.now_ms()):
                job.run()
                job.finish()

        self.wait(retain())
        self.c.forget_frames()
        self.save()
        self.wait(self.settle())

    @rule()
    def save(self):
        self.wait(self.c.groups.save_all())
        for fact in self.facts.values():
            fact.saved = fact.failed_min, fact.is_done

    @rule(is_crash=st.booleans())
    def restart(self, is_crash):
        if not is_crash:
            self.save()
        self.c.has_crashed = is_crash
        self.wait(self.close())
        self.models.clear()
        self.highest.clear()
        self.incarnation += 1
        for fact in self.facts.values():
            fact.failed_min = min(fact.failed_min, fact.saved[0])
            fact.is_done = fact.saved[1]
        self.wait(self.open())

    # At the end

    def teardown(self):
        try:
            self.finish()
        finally:
            self.wait(self.close())
            self.loop.close()
            shutil.rmtree(self.folder)

    def finish(self):
        """Have one good member consume all that is left; then look for what is missing."""
        for name in sorted(self.models):
            model = self.models.pop(name)
            self.do(model.member.session.close, clean=True)
        self.join("zoe", 100)
        zoe = self.models["zoe"]
        for _ in range(400):
            self.receive(zoe)
            for place in list(zoe.held):
                partition, offset = place
                ranges = [(offset, offset + 1)]
                generation = zoe.held[place][0]
                self.do(zoe.member.session.answer, AnswerKind.ACK, partition, generation, ranges)
                self.settle_answer(zoe, place, AnswerKind.ACK, 0, is_valid=True)
            self.pass_time(100, True)
            if not any(place.lag for place in self.c.groups.get("t", "g").partitions):
                break
        else:
            raise AssertionError(f"not all was delivered: {self.c.groups.get('t', 'g')}")
        self.check_dead_letters()

    def check_dead_letters(self):
        page = self.wait(self.c.dead_letters.list("t", limit=1_000))
        dead = [(letter.origin_partition, letter.origin_offset) for letter in page.dead_letters]
        assert len(dead) == len(set(dead)) == page.total, "a dead letter was written twice"
        for place, fact in self.facts.items():
            may_be_gone = fact.expires_ms is not None or fact.is_trimmed
            assert fact.was_acked or place in dead or may_be_gone, f"{place} was lost: {fact}"
            is_kept = place in dead or fact.is_trimmed
            assert not fact.is_dead or is_kept, f"{place} is dead and was not kept"
        for letter in page.dead_letters:
            fact = self.facts[letter.origin_partition, letter.origin_offset]
            assert letter.message.value == fact.value


class CountingHistory(DeliveryHistory):
    """The same where lost owners are counted."""

    delivery = replace(DELIVERY, count_lost_owners=True)
