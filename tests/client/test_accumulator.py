"""Lanes send what is full at once, let the rest wait for company, and never part a key's order."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from waterclock.client.producer.accumulator import Accumulator
from waterclock.client.producer.columns import Columns

LINGER_MS = 5.0


def batch(*keys: bytes | None) -> Columns:
    made = Columns()
    made.keys = list(keys)
    made.values = [b""] * len(keys)
    return made


def accumulator(in_flight_max: int = 4) -> Accumulator[Columns]:
    return Accumulator(in_flight_max=in_flight_max)


def opened(at: Accumulator[Columns], *keys: bytes | None, now_ms: float = 0.0) -> Columns:
    made = batch(*keys)
    at.begin(made, now_ms)
    return made


def test_with_nothing_in_flight_a_message_never_waits():
    at = accumulator()
    first = opened(at, None)

    assert at.next_batch(0.0, linger_ms=LINGER_MS) is first


def test_with_something_in_flight_a_batch_gathers_until_the_answer():
    at = accumulator()
    first = opened(at, None)
    at.next_batch(0.0, linger_ms=LINGER_MS)
    second = opened(at, None)

    assert at.next_batch(4.9, linger_ms=LINGER_MS) is None
    at.answered(first)
    assert at.next_batch(4.9, linger_ms=LINGER_MS) is second


def test_nobody_lingers_longer_than_asked():
    at = accumulator()
    opened(at, None)
    at.next_batch(0.0, linger_ms=LINGER_MS)
    second = opened(at, None, now_ms=1.0)

    assert at.next_batch(5.9, linger_ms=LINGER_MS) is None
    assert at.next_batch(6.0, linger_ms=LINGER_MS) is second


def test_a_full_batch_does_not_linger_but_needs_a_free_place():
    at = accumulator(in_flight_max=2)
    for _ in range(3):
        opened(at, None)
        at.fill()

    sent = [at.next_batch(0.0, linger_ms=LINGER_MS) for _ in range(3)]
    assert sent[2] is None
    assert sent[0] is not None
    at.answered(sent[0])
    assert at.next_batch(0.0, linger_ms=LINGER_MS) is not None


def test_a_batch_that_shares_a_key_waits_and_so_does_all_behind_it():
    at = accumulator()
    first = opened(at, b"a", None)
    at.fill()
    second = opened(at, b"b", b"a")
    at.fill()
    third = opened(at, b"c")
    at.fill()

    assert at.next_batch(0.0, linger_ms=LINGER_MS) is first
    assert at.next_batch(0.0, linger_ms=LINGER_MS) is None
    at.answered(first)
    assert at.next_batch(0.0, linger_ms=LINGER_MS) is second
    assert at.next_batch(0.0, linger_ms=LINGER_MS) is third


def test_messages_without_a_key_bind_nothing():
    at = accumulator()
    for _ in range(2):
        opened(at, None)
        at.fill()

    assert at.next_batch(0.0, linger_ms=LINGER_MS) is not None
    assert at.next_batch(0.0, linger_ms=LINGER_MS) is not None


class AccumulatorHistory(RuleBasedStateMachine):
    """Messages come, time passes, answers come in any order; what leaves is what came, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.at = accumulator(in_flight_max=3)
        self.now_ms = 0.0
        self.came: list[tuple[bytes | None, bytes]] = []
        self.left: list[tuple[bytes | None, bytes]] = []
        self.flying: list[Columns] = []

    @rule(key=st.sampled_from([None, b"a", b"b", b"c"]), is_full=st.booleans())
    def publish(self, key: bytes | None, is_full: bool) -> None:
        if self.at.open is None:
            self.at.begin(Columns(), self.now_ms)
        value = b"%d" % len(self.came)
        self.came.append((key, value))
        assert self.at.open is not None
        self.at.open.keys.append(key)
        self.at.open.values.append(value)
        if is_full:
            self.at.fill()

    @rule()
    def send(self) -> None:
        was_idle = self.at.is_idle
        sent = self.at.next_batch(self.now_ms, linger_ms=LINGER_MS)
        if sent is None:
            # Nothing may be left lying while nothing is under way.
            assert not was_idle or self.at.is_empty
            return
        self.flying.append(sent)
        values = [value for value in sent.values if value is not None]
        self.left += zip(sent.keys, values, strict=True)

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, 2))
    def answer(self, which: int) -> None:
        self.at.answered(self.flying.pop(which % len(self.flying)))

    @rule(ms=st.floats(0, 10))
    def wait(self, ms: float) -> None:
        self.now_ms += ms

    @invariant()
    def keys_keep_their_order(self) -> None:
        self.at.check_invariants()
        for key in (b"a", b"b", b"c"):
            left = [value for each, value in self.left if each == key]
            assert left == [value for each, value in self.came if each == key][: len(left)]

    def teardown(self) -> None:
        while not self.at.is_empty:
            self.send()
            if self.flying:
                self.answer(0)
        assert sorted(self.left, key=str) == sorted(self.came, key=str)


TestAccumulatorHistory = AccumulatorHistory.TestCase


@given(st.integers(1, 5))
def test_what_was_not_sent_can_be_taken_out(count):
    at = accumulator()
    made = []
    for number in range(count):
        made.append(opened(at, b"%d" % number))
        if number < count - 1:
            at.fill()

    assert at.waiting() == made
    assert at.is_empty
