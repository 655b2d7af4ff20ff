"""A dispatcher without sockets: the shell's part, done with the model of Redis."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tests.dispatch.model_redis import FAILED, STALE
from tests.dispatch.processes import Connection, Process
from waterclock.dispatch import frames
from waterclock.dispatch.core.batches import Effect, Load, Settle, WriteDeadLetters
from waterclock.dispatch.core.identity import MarkerName, Position, SequenceMarker, entry_uuids
from waterclock.dispatch.core.lease import (
    HANDICAP_MS,
    Ask,
    Call,
    Lease,
    LeaseEffect,
    StepDown,
)
from waterclock.dispatch.core.plan import Plan
from waterclock.dispatch.core.ring import Drained, Ring
from waterclock.dispatch.core.stored_batches import Backlog, parse_stored_batch
from waterclock.dispatch.decoder import Decoder
from waterclock.dispatch.frames import LEADER_READS

if TYPE_CHECKING:
    from tests.dispatch.simulation import World

MARKER_MS = 100
STORE_MS = 1_000


class SimulatedDispatcher(Process):
    """Leader or standby; `plan` is there while it leads."""

    def __init__(self, number: int, world: "World") -> None:
        super().__init__(number, world.schedule)
        self.world = world
        self.redis = world.redis
        self.lease = Lease(world.lease_config, Random(world.schedule.rng.random()))
        self.ring = Ring("c", messages_max=world.ring_max, bytes_max=1 << 20)
        self.plan: Plan | None = None
        self.epoch = 0
        self.is_ready = False
        self.freeze_when_asking_ms = 0
        """Freeze at the worst moment: between the question for the lease and the answer."""
        self.cut_when_asking_ms = 0
        """Lose Redis right behind such a question, whose answer comes late."""
        self.freeze_when_sending_ms = 0
        """Freeze with frames on the way, which arrive when another leads."""
        self.is_subscribed = False
        self.unheard = 0
        """Messages of the channel that are on the way to it."""
        self.links: dict[int, tuple[Connection, Decoder, Any]] = {}
        self._nonce = world.schedule.rng.randbytes(8)
        self._markers = 0
        self._marker_at_ms = 0
        self._store_at_ms = 0
        self._stored: Position | None = None
        self._is_store_running = self._is_reading = self._must_claim = self._is_resumed = False
        self._backlog = Backlog(1_000_000)
        self._unsure: Drained | None = None
        self.hear(self._subscribe)
        self.hear(self.turn)

    # The subscription

    def _subscribe(self) -> None:
        arrival_ms = 0

        def push(channel: str, payload: Any) -> None:
            nonlocal arrival_ms
            arrival_ms = max(arrival_ms, self.schedule.now_ms + self.schedule.delay())
            self.unheard += channel == "c"
            self.schedule.at(arrival_ms, lambda: self.hear(lambda: hear(channel, payload)))

        def hear(channel: str, payload: Any) -> None:
            self.unheard -= channel == "c"
            if self.redis.subscribers.get(self.number) is push:
                self.ring.heard([payload]) if channel == "c" else self.ring.marker_heard(payload)
                self.turn()

        self.redis.subscribers[self.number] = push
        self.world.judge.subscribed(self.number)
        self.ring.subscribed(self._nonce, self.schedule.now_ms)
        self.is_subscribed = True
        # A place that everybody knows, before the leader's next marker comes.
        name = MarkerName(0, self.ring.gaps, self.schedule.rng.randbytes(8))
        marker = SequenceMarker(name, self.schedule.now_ms)
        self.call(lambda: self.redis.publish("markers", marker), lambda said: None)

    def break_subscription(self) -> None:
        """Cut it; it is made anew a little later."""
        self.redis.subscribers.pop(self.number, None)
        self.world.judge.unsubscribed(self.number)
        self.is_subscribed = False
        self.schedule.at(self.schedule.now_ms + 200, lambda: self.hear(self._subscribe))

    # The lease

    def turn(self) -> None:
        """Do all that is due, and say when to be woken."""
        now_ms = self.now_ms
        self.lease.handicap_ms = 0 if self.ring.reaches_back else HANDICAP_MS
        self._perform_lease(self.lease.tick(now_ms))
        if self.plan is not None and self.lease.is_held(now_ms):
            self._lead(self.plan, now_ms)
        times = [self.lease.next_deadline()]
        if self.plan is not None:
            times += [self.plan.next_deadline(now_ms), self._marker_at_ms]
        self.wake_at(min((time_ms for time_ms in times if time_ms is not None), default=None))

    def _perform_lease(self, actions: Sequence[LeaseEffect]) -> None:
        for action in actions:
            match action:
                case Ask(Call.ACQUIRE, asked_ms):
                    self.call(self._acquire, partial(self._asked, asked_ms))
                case Ask(Call.LOOK, _):
                    self.call(self.redis.lock_ttl_ms, self._looked)
                case Ask(Call.RENEW, asked_ms):
                    self._ask_to_renew(asked_ms)
                case StepDown():
                    self.step_down()

    def _ask_to_renew(self, asked_ms: int) -> None:
        late_ms = self.world.lease_config.lease_ms // 2 if self.cut_when_asking_ms else 0
        self.call(self._renew, partial(self._renewed, asked_ms), late_ms=late_ms)
        if self.freeze_when_asking_ms:
            self.freeze(self.freeze_when_asking_ms)
        if self.cut_when_asking_ms:
            self.cut_off_until_ms = self.schedule.now_ms + self.cut_when_asking_ms
        self.freeze_when_asking_ms = self.cut_when_asking_ms = 0

    def _acquire(self) -> Any:
        lease_ms = self.world.lease_config.lease_ms
        return self.redis.acquire(f"{self.number}", self.number, lease_ms)

    def _renew(self) -> Any:
        return self.redis.renew(f"{self.number}", self.world.lease_config.lease_ms)

    def _asked(self, asked_ms: int, said: Any) -> None:
        if said is FAILED:
            self.lease.failed(self.now_ms)
        elif not said[0]:
            self.lease.refused(ttl_ms=said[1], now_ms=self.now_ms)
        elif self.lease.acquired(said[1], asked_ms=asked_ms, now_ms=self.now_ms):
            self._begin(said[1])
        else:
            self.call(lambda: self.redis.release(f"{self.number}"), lambda said: None)
        self.turn()

    def _looked(self, said: Any) -> None:
        if said is FAILED:
            self.lease.failed(self.now_ms)
        elif said is None:
            self.lease.seen_free(self.now_ms)
        else:
            self.lease.refused(ttl_ms=said, now_ms=self.now_ms)
        self.turn()

    def _renewed(self, asked_ms: int, said: Any) -> None:
        if said is FAILED:
            self.lease.failed(self.now_ms)
        elif said:
            self._perform_lease(self.lease.renewed(asked_ms=asked_ms, now_ms=self.now_ms))
        else:
            self._perform_lease(self.lease.lost(self.now_ms))
        self.turn()

    def step_down(self) -> None:
        self.plan, self.is_ready = None, False
        for connection, _, worker in list(self.links.values()):
            connection.cut(lambda: None, worker.disconnected(connection))
        self.links.clear()

    def _guarded(self, script: Any, answer: Any) -> None:
        """Call a fenced script, and answer only if we still lead under the same epoch."""
        epoch = self.epoch

        def said(result: Any) -> None:
            if self.lease.epoch != epoch:
                return
            if result is STALE:
                self._perform_lease(self.lease.lost(self.now_ms))
            else:
                answer(result)
            self.turn()

        self.call(lambda: script(epoch), said)

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self.plan = Plan(self.world.plan_config, Random(epoch))
        self._backlog = Backlog(1_000_000)
        self._is_store_running = self._is_reading = False
        self._unsure = None
        self._must_claim = True
        self._guarded(self.redis.raise_fence, self._fence_raised)

    def _fence_raised(self, said: Any) -> None:
        if said is FAILED:
            self._guarded(self.redis.raise_fence, self._fence_raised)
        else:
            self._guarded(self.redis.load, self._loaded)

    def _loaded(self, said: Any) -> None:
        if said is FAILED:
            self._guarded(self.redis.load, self._loaded)
            return
        self._stored, stored_batches = said
        for stored_id, raw in stored_batches.items():
            self._backlog.hold(stored_id, len(parse_stored_batch(raw).bodies))
        self._marker_at_ms = self._store_at_ms = self.now_ms
        self.is_ready, self._is_resumed = True, False

    # Leading

    def _lead(self, plan: Plan, now_ms: int) -> None:
        self._perform(plan.tick(now_ms))
        if not self.is_ready:
            return
        if now_ms >= self._marker_at_ms:
            self._marker_at_ms = now_ms + MARKER_MS
            self._markers += 1
            name = MarkerName(self.epoch, self._markers, self._nonce)
            marker = SequenceMarker(name, self.schedule.now_ms, self._stored)
            self.call(lambda: self.redis.publish("markers", marker), lambda said: None)
        if not self._is_resumed and self.ring.epoch_heard == self.epoch:
            self._is_resumed = True
            self.world.judge.resumed(self.ring.resume(self._stored), self._stored)
        if self._is_resumed:
            self._store(now_ms)
        self._read(plan)
        for stored_id in self._backlog.take(plan.room):
            raw = self.redis.stored_batches[stored_id]  # fetched in no time, for the model's sake
            self._perform(plan.add(Load.of_stored_batch(parse_stored_batch(raw))))
        self._hand_out(plan, now_ms)
        self.world.judge.bounded(self, plan)

    def _store(self, now_ms: int) -> None:
        if self._is_store_running:
            return
        # What may be stored already is stored again as it was, never in other pieces.
        drained = self._unsure
        if drained is None:
            drained = self.ring.drain(200)
            self.world.judge.missed += drained.missed
        if drained.position is None:
            return
        if not drained.stored_batches and now_ms < self._store_at_ms:
            return
        self._is_store_running, self._store_at_ms = True, now_ms + STORE_MS
        self._unsure = drained
        position, stored = (
            drained.position,
            {p.stored_id: p.to_bytes() for p in drained.stored_batches},
        )

        def said(result: Any) -> None:
            self._is_store_running = False
            if result is FAILED:
                return
            self._unsure = None
            self.ring.stored(position)
            self._stored = position
            for stored_batch in drained.stored_batches:
                if self.plan is not None and not self._backlog and self.plan.room:
                    self._perform(self.plan.add(Load.of_stored_batch(stored_batch)))
                else:
                    self._backlog.hold(stored_batch.stored_id, len(stored_batch.bodies))

        self._guarded(lambda epoch: self.redis.store(epoch, stored, position), said)

    def _read(self, plan: Plan) -> None:
        if self._is_reading or not plan.room or not (self._must_claim or self.redis.source_entries):
            return
        if not self._must_claim and self.redis.read_to >= len(self.redis.source_entries):
            return
        self._is_reading = True
        is_claim, room = self._must_claim, min(plan.room, 100)
        # What is pending and not in the plan may be behind all that is in it.
        count = self.world.plan_config.messages_max if is_claim else room
        script = self.redis.claim if is_claim else self.redis.read

        def said(result: Any) -> None:
            self._is_reading = False
            if result is FAILED:
                # It may have been read all the same: then it is pending, and nobody knows.
                self._must_claim = True
                return
            self._must_claim = is_claim and len(result) == count
            if result and self.plan is not None:
                entries = [entry for entry, _ in result]
                uuids, births_ms = entry_uuids("s", entries)
                bodies = [body for _, body in result]
                self.plan.add(Load(uuids, births_ms, bodies, entries=entries))

        self._guarded(lambda epoch: script(epoch, count), said)

    def _hand_out(self, plan: Plan, now_ms: int) -> None:
        for out in plan.hand_out(now_ms):
            self.world.judge.handed_out(self, out, now_ms)
            frame = frames.encode_process_batch(
                epoch=self.epoch,
                deliveries=out.deliveries,
                uuids=out.uuids,
                births_ms=out.births_ms,
                bodies=out.bodies,
            )
            connection, _, worker = self.links[out.worker]
            late_ms = max(0, self.freeze_when_sending_ms - 50)
            connection.send(self, worker.receiver(connection), frame, late_ms=late_ms)
            if self.freeze_when_sending_ms:
                self.freeze(self.freeze_when_sending_ms)
                self.freeze_when_sending_ms = 0

    def _perform(self, actions: Sequence[Effect]) -> None:
        for action in actions:
            match action:
                case Settle(stored_batches, entries):
                    self._settle(stored_batches, entries)
                case WriteDeadLetters(dead_letters):
                    self._write_dead_letters(dead_letters)

    def _settle(self, stored_batches: list[bytes], entries: list[bytes]) -> None:
        def said(result: Any) -> None:
            if result is FAILED:
                self._settle(stored_batches, entries)

        self._guarded(lambda epoch: self.redis.settle(epoch, stored_batches, entries), said)

    def _write_dead_letters(self, dead_letters: list[Any]) -> None:
        def said(result: Any) -> None:
            if result is FAILED:
                self._write_dead_letters(dead_letters)
            elif self.plan is not None:
                self.world.judge.dead_lettered(dead_letters)
                self._perform(
                    self.plan.dead_lettered([dead_letter.uuid for dead_letter in dead_letters])
                )

        self._guarded(lambda epoch: self.redis.write_dead_letters(epoch, dead_letters), said)

    # Workers

    def accept(self, connection: Connection, worker: Any) -> None:
        self.links[connection.key] = (connection, Decoder(LEADER_READS), worker)

    def disconnected(self, key: int) -> None:
        if self.links.pop(key, None) is not None and self.plan is not None:
            self.world.judge.worker_gone(self, key)
            self._perform(self.plan.left(key, self.now_ms))
            self.turn()

    def receive(self, key: int, data: bytes) -> None:
        if key not in self.links or self.plan is None or not self.lease.is_held(self.now_ms):
            return
        for frame in self.links[key][1].feed(data):
            self._answer(self.plan, key, frame)
        self.turn()

    def _answer(self, plan: Plan, key: int, frame: frames.Frame) -> None:
        now_ms = self.now_ms
        match frame:
            case frames.Hello(_, credit, name):
                plan.joined(key, name=name, credit=credit)
            case frames.AckBatch(epoch, uuids) if epoch == self.epoch:
                self.world.judge.given_back(self, uuids)
                self._perform(plan.acked(uuids, key))
            case frames.Progress(epoch, uuids) if epoch == self.epoch:
                self.world.judge.extended(self, uuids, key, now_ms)
                plan.progressed(uuids, key, now_ms)
            case frames.Nack(epoch, uuids, reason, is_permanent) if epoch == self.epoch:
                self.world.judge.given_back(self, uuids)
                self._perform(
                    plan.nacked(uuids, key, now_ms, reason=reason, is_permanent=is_permanent)
                )
            case frames.Credit(_, credit):
                plan.credited(key, credit)
