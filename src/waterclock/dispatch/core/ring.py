"""The ring: what a subscriber heard and nobody has stored yet, each message in its place.

Leader and standbys run one each, fed in the order of their one connection:

    subscribed(nonce, time_ms)          the subscription began, or began anew: here is a gap
    heard([body...])                    messages of the user's channel
    marked(SequenceMarker)              a marker; its `stored` frees what the leader has stored
    resume(Position | None) -> Resumed  take-over: forget what the last leader stored
    drain() -> Drained                  leader: batches to store, and the position behind them
    stored(Position)                    leader: they are stored; one store at a time

A place is (marker, count behind it). Behind a new subscription, until the first marker is heard, a
subscriber counts from a marker of its own that nobody else knows. Such messages are drained only
once a common marker gives the position behind them: what is stored must be found again by
everybody.

The leader stores its position about every second also while nothing comes. So what is stored is
never far behind, and the ring stays short; its limits bound it if the leader is slow, and what they
push out is counted, exactly as long as the markers of it are known.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from waterclock.dispatch.core.identity import MarkerName, Position, SequenceMarker, marker_prefix
from waterclock.dispatch.core.stored_batches import MESSAGES_MAX, StoredBatch

MARKERS_MAX = 10_000
"""Markers in a ring, and markers remembered of what was pushed out of it."""
DRAINED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a take-over found."""

    missed: int
    """Messages that were heard and are lost: pushed out before anybody stored them."""
    has_gap: bool
    """Nobody here listened all the time since the last leader stored: more may be missing."""
    maybe_repeated: int
    """Messages heard before any common marker, which the last leader may have stored as well."""
    held: int
    """Messages that wait to be stored."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What the leader must store in one step: the batches, and the position behind them."""

    stored_batches: list[StoredBatch]
    position: Position | None
    """None only if no marker was heard yet, and there are no stored batches."""
    missed: int = 0
    """Messages that are lost: the ring's limits pushed them out before they could be stored. Each
    is reported once, by `drain` or by `resume`: count it at once."""


@dataclass(slots=True)
class _Stretch:
    """The messages behind one marker; `first` of them are gone from the front."""

    name: MarkerName
    time_ms: int
    is_common: bool
    bodies: deque[bytes]
    first: int = 0
    pushed_out: int = 0
    """How many of those were pushed out, and are not reported as missed yet."""


class Ring:
    """Holds what was heard, at most so many messages and bytes."""

    def __init__(self, channel: str, *, messages_max: int, bytes_max: int) -> None:
        self._channel = channel
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._stretches: deque[_Stretch] = deque()
        self._pushed_out: deque[_Stretch] = deque(maxlen=MARKERS_MAX)
        """Stretches that were pushed out, without their messages."""
        self._subscriptions = 0
        self.reaches_back = False
        """Whether a take-over now would lose nothing, as far as the last marker told."""
        self.epoch_heard = 0
        """The epoch of the last leader's marker. A new leader publishes a marker, and resumes
        when it comes back: by then everything that was published before the take-over is heard."""
        self.messages = 0
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<Ring {self.messages} messages behind {len(self._stretches)} markers>"

    @property
    def gaps(self) -> int:
        """How often the subscription broke."""
        return max(0, self._subscriptions - 1)

    @property
    def position(self) -> Position | None:
        """The place behind all that was heard; None until a marker is heard."""
        last = self._stretches[-1] if self._stretches else None
        if last is None or not last.is_common:
            return None
        return Position(last.name, last.first + len(last.bodies))

    def subscribed(self, nonce: bytes, time_ms: int) -> None:
        """Begin after the subscription did; `nonce` is 8 random bytes of this process."""
        self._subscriptions += 1
        self.reaches_back = False
        self.epoch_heard = 0
        own = MarkerName(epoch=0, number=self._subscriptions, nonce=nonce)
        self._stretches.append(_Stretch(own, time_ms, False, deque()))
        self._push_out()

    def heard(self, bodies: Sequence[bytes]) -> None:
        """Take in messages of the channel."""
        assert self._stretches, "heard before subscribed"
        self._stretches[-1].bodies.extend(bodies)
        self.messages += len(bodies)
        self.bytes += sum(map(len, bodies))
        self._push_out()

    def marker_heard(self, marker: SequenceMarker) -> None:
        """Take in a marker: from here on messages are counted from it."""
        assert self._stretches, "marked before subscribed"
        self._stretches.append(_Stretch(marker.name, marker.time_ms, True, deque()))
        if marker.stored is not None:
            self.stored(marker.stored)
        if marker.name.epoch:  # one of a leader's; others only name a place
            self.epoch_heard = marker.name.epoch
            self.reaches_back = self._reaches(marker.stored)
        self._push_out()

    def stored(self, position: Position) -> None:
        """Forget what is stored by now."""
        known = [*self._pushed_out, *self._stretches]
        at = next((at for at, each in enumerate(known) if each.name == position.marker), None)
        if at is not None:
            self._drop_to(position, at)

    def resume(self, stored: Position | None) -> Resumed:
        """Forget what the last leader stored; from now on `drain` continues behind it."""
        known = [*self._pushed_out, *self._stretches]
        names = [each.name for each in known]
        at = 0 if stored is None else names.index(stored.marker) if stored.marker in names else None
        own = sum(len(each.bodies) for each in self._stretches if not each.is_common)
        missed = self._missed(known[at or 0 :], stored)
        # Before the first subscription there was nothing; behind each other one is a gap.
        is_first_known = stored is None
        has_gap = at is None or any(not each.is_common for each in known[at + is_first_known :])
        if stored is not None and at is not None:
            self._drop_to(stored, at)
        for each in known:
            each.pushed_out = 0
        return Resumed(missed, has_gap, own if at is None else 0, self.messages)

    def drain(self, messages_max: int = DRAINED_MAX) -> Drained:
        """Return what is to be stored, about so many messages; say `stored` when it is."""
        last = next((each for each in reversed(self._stretches) if each.is_common), None)
        if last is None:
            return Drained([], None)
        stored_batches: list[StoredBatch] = []
        count = 0
        known = [*self._pushed_out, *self._stretches]
        missed = self._missed(known, None)
        for each in known:
            each.pushed_out = 0
        for stretch in self._stretches:
            bodies = list(stretch.bodies)
            if stretch.is_common and count + len(bodies) > messages_max:
                # Not in the midst of what only we can count: a position must mean the same to all.
                bodies = bodies[: max(messages_max - count, 0)]
            stored_batches += self._stored_batches(stretch, bodies)
            count += len(bodies)
            if stretch is last or len(bodies) < len(stretch.bodies):
                position = Position(stretch.name, stretch.first + len(bodies))
                return Drained(stored_batches, position, missed)
        raise AssertionError("the last common marker is not in the ring")

    def check_invariants(self) -> None:
        """Raise AssertionError if the sums do not add up or a limit is passed."""
        assert self.messages == sum(len(each.bodies) for each in self._stretches)
        assert self.bytes == sum(len(body) for each in self._stretches for body in each.bodies)
        assert self.messages <= self._messages_max
        assert self.bytes <= self._bytes_max
        assert len(self._stretches) <= MARKERS_MAX

    def _stored_batches(self, stretch: _Stretch, bodies: list[bytes]) -> list[StoredBatch]:
        prefix = marker_prefix(self._channel, stretch.name) if bodies else b""
        return [
            StoredBatch(prefix, stretch.first + at, stretch.time_ms, bodies[at : at + MESSAGES_MAX])
            for at in range(0, len(bodies), MESSAGES_MAX)
        ]

    def _reaches(self, stored: Position | None) -> bool:
        if stored is None:
            return self.gaps == 0 and not self._pushed_out
        return any(each.name == stored.marker for each in self._stretches)

    def _drop_to(self, stored: Position, at: int) -> None:
        """Forget all up to a place behind the marker with this index, pushed out ones counted
        too."""
        for _ in range(min(at, len(self._pushed_out))):
            self._pushed_out.popleft()
            at -= 1
        for _ in range(at):
            self._uncount(self._stretches.popleft().bodies)
        first = self._pushed_out[0] if self._pushed_out else self._stretches[0]
        # What was pushed out behind the place is still missing.
        first.pushed_out = min(first.pushed_out, max(first.first - stored.count, 0))
        count = min(max(stored.count - first.first, 0), len(first.bodies))
        self._uncount([first.bodies.popleft() for _ in range(count)])
        first.first += count

    def _push_out(self) -> None:
        while self.messages > self._messages_max or self.bytes > self._bytes_max:
            if self._stretches[0].bodies:
                self._push_out_first(1)
            if not self._stretches[0].bodies and len(self._stretches) > 1:
                self._pushed_out.append(self._stretches.popleft())
        while len(self._stretches) > MARKERS_MAX:
            self._push_out_first(len(self._stretches[0].bodies))
            self._pushed_out.append(self._stretches.popleft())

    def _push_out_first(self, count: int) -> None:
        first = self._stretches[0]
        self._uncount([first.bodies.popleft() for _ in range(count)])
        first.first += count
        first.pushed_out += count

    @staticmethod
    def _missed(stretches: Sequence[_Stretch], stored: Position | None) -> int:
        """Return how many messages of these were pushed out, behind a place in the first."""
        missed = sum(each.pushed_out for each in stretches)
        if stored is not None and stretches and stretches[0].name == stored.marker:
            first = stretches[0]
            missed -= first.pushed_out
            missed += min(first.pushed_out, max(first.first - stored.count, 0))
        return missed

    def _uncount(self, bodies: Collection[bytes]) -> None:
        self.messages -= len(bodies)
        self.bytes -= sum(map(len, bodies))
