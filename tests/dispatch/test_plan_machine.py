"""The plan under anything in any order: it keeps its word, and its books."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.dispatch.plans import DEADLINE_MS, load, new_plan, uuids
from tests.kit.examples import examples
from waterclock.dispatch.core.batches import Settle


class PlanMachine(RuleBasedStateMachine):
    """A shell that does whatever Hypothesis thinks of."""

    @initialize(is_small=st.booleans())
    def begin(self, is_small: bool) -> None:
        self.plan = new_plan(workers=0, deliveries_max=3, batch_messages_max=3 if is_small else 50)
        self.now_ms = 0
        self.next_number = 0
        self.next_worker = 0
        self.workers: list[int] = []
        self.out: dict[bytes, tuple[int, int]] = {}
        self.open: set[bytes] = set()
        self.stored_batches: dict[bytes, set[bytes]] = {}
        self.given_up: list[bytes] = []

    def perform(self, actions):
        for action in actions:
            if isinstance(action, Settle):
                for stored_id in action.stored_batches:
                    assert not self.stored_batches.pop(stored_id) & self.open
            else:
                for dead_letter in action.dead_letters:
                    assert dead_letter.uuid in self.open
                    self.out.pop(dead_letter.uuid, None)
                    self.given_up.append(dead_letter.uuid)

    @rule(count=st.integers(1, 20), is_stored_batch=st.booleans())
    def add(self, count: int, is_stored_batch: bool) -> None:
        self.perform(self.plan.add(load(self.next_number, count, is_stored_batch=is_stored_batch)))
        new = uuids(self.next_number, count)
        self.open.update(new)
        if is_stored_batch:
            self.stored_batches[new[0]] = set(new)
        self.next_number += count

    @rule(credit=st.integers(0, 30))
    def join(self, credit: int) -> None:
        self.plan.joined(self.next_worker, name="w", credit=credit)
        self.workers.append(self.next_worker)
        self.next_worker += 1

    @rule(data=st.data())
    def leave(self, data) -> None:
        if self.workers:
            gone = data.draw(st.sampled_from(self.workers))
            self.workers.remove(gone)
            self.out = {uuid: held for uuid, held in self.out.items() if held[0] != gone}
            self.perform(self.plan.left(gone, self.now_ms))

    @rule()
    def hand_out(self) -> None:
        for out in self.plan.hand_out(self.now_ms):
            assert out.worker in self.workers
            assert len(out.uuids) == len(out.births_ms) == len(out.bodies)
            for uuid in out.uuids:
                assert uuid in self.open
                assert uuid not in self.out or self.out[uuid][1] <= self.now_ms
                self.out[uuid] = (out.worker, self.now_ms + DEADLINE_MS)

    def chosen(self, data) -> list[bytes]:
        known = [uuid for uuid in sorted(self.open) if uuid not in self.given_up]
        some = st.lists(st.sampled_from(known), max_size=9) if known else st.just([])
        drawn: list[bytes] = data.draw(some)
        return drawn

    @rule(data=st.data())
    def ack(self, data) -> None:
        said = self.chosen(data)
        self.open -= set(said)
        for uuid in said:
            self.out.pop(uuid, None)
        self.perform(self.plan.acked(said, 0))

    @rule(data=st.data(), is_permanent=st.booleans())
    def nack(self, data, is_permanent: bool) -> None:
        if self.workers:
            worker = data.draw(st.sampled_from(self.workers))
            said = self.chosen(data)
            self.perform(
                self.plan.nacked(said, worker, self.now_ms, reason="x", is_permanent=is_permanent)
            )
            for uuid in said:
                if self.out.get(uuid, (-1, 0))[0] == worker:
                    del self.out[uuid]

    @rule(data=st.data())
    def progress(self, data) -> None:
        if self.workers:
            worker = data.draw(st.sampled_from(self.workers))
            said = self.chosen(data)
            self.plan.progressed(said, worker, self.now_ms)
            for uuid in said:
                holder, until_ms = self.out.get(uuid, (-1, 0))
                if holder == worker and self.now_ms < until_ms:
                    self.out[uuid] = (worker, self.now_ms + DEADLINE_MS)

    @rule()
    def write_dead_letters(self) -> None:
        self.open -= set(self.given_up)
        said, self.given_up = self.given_up, []
        self.perform(self.plan.dead_lettered(said))

    @rule(step_ms=st.sampled_from([1, 100, 500, 1_999, 2_000, 30_000]))
    def wait(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.perform(self.plan.tick(self.now_ms))

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "plan"):
            self.plan.check_invariants()
            assert self.plan.held == len(self.open)


PlanMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
test_anything_in_any_order = PlanMachine.TestCase
