"""The lease: who may lead, decided by one clock only, and given up before it could run out.

Redis keeps a lock that expires; the script that takes it gives out an epoch, larger than all
before. The holder renews it long before it expires. What Redis last said is not enough, though: a
process that was paused believes what it heard before. So the holder goes by its own monotonic
clock, counted from *before* it asked, and takes a tenth off for clocks that differ:

    asked            answered               stops here      expires in Redis at the earliest
    |----------------|----------------------|---------------|
    0                                       lease - margin  lease

A pause between looking at the clock and acting can still not be excluded. That is what the epoch is
for: every write compares it (`Fence`, the scripts), and refuses the smaller one.

How a shell uses it: call `tick` at `next_deadline()`; perform `Ask` with one script, and tell how
it went with one of `acquired refused seen_free renewed lost failed`; look at `is_held` before
handing out.

A dispatcher that would lose messages if it led (one that has just begun to listen) lets those go
first that would not: it takes a lock only after it has *seen* it free, and then waited for its
handicap. When the lock became free it cannot know otherwise: its leader may have been dead for a
while already, or may give it back between two looks.
"""

from dataclasses import dataclass
from enum import Enum
from json import loads
from random import Random
from typing import Any, TypeAlias

from waterclock.model.errors import BadInput

LOCK_BYTES_MAX = 4_096
POLL_MS_MAX = 250
DOUBT_MS = 100
"""How long at least lies between two questions whether we still lead."""
HANDICAP_MS = 400
"""Longer than the others take to find the lock free: POLL_MS_MAX, a fifth of it by chance, and the
way to Redis and back."""


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """How long a lease is; all else follows from it."""

    lease_ms: int = 2_000

    @property
    def margin_ms(self) -> int:
        """How long before the end the holder stops: clocks may differ by a tenth."""
        return self.lease_ms // 10

    @property
    def renew_ms(self) -> int:
        """How often it is renewed: two attempts may fail."""
        return self.lease_ms * 3 // 10

    @property
    def poll_ms(self) -> int:
        """How often others look whether it was given back early."""
        return min(POLL_MS_MAX, self.lease_ms // 4)


class Call(Enum):
    """What to ask of Redis."""

    ACQUIRE = "acquire"
    LOOK = "look"
    """Whether the lock is free, and else for how long it is not: take nothing."""
    RENEW = "renew"


@dataclass(frozen=True, slots=True)
class Ask:
    """Run the script now, and say how it went; `asked_ms` goes back with the answer."""

    call: Call
    asked_ms: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop leading at once: hand out, settle and publish nothing more under this epoch."""

    epoch: int
    reason: str


LeaseEffect: TypeAlias = Ask | StepDown


class Lease:
    """Decides when to ask for the lease, and until when it is held."""

    def __init__(self, config: LeaseConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self.epoch: int | None = None
        """Ours, while we lead."""
        self.handicap_ms = 0
        """How long to let others go first once the lock is free; set it while another is fitter to
        take over (`Ring.reaches_back`)."""
        self._held_until_ms = 0
        self._next_ask_ms: int | None = None
        self._has_seen_free = False
        """Whether the lock was free when we last looked, which was a handicap ago."""
        self._asked_ms: int | None = None
        """When the question was asked that is not answered yet."""
        self._is_stopping = False

    def __repr__(self) -> str:
        return f"<Lease epoch {self.epoch}>" if self.epoch is not None else "<Lease of another>"

    def is_held(self, now_ms: int) -> bool:
        """Say whether we may lead at this moment."""
        return self.epoch is not None and now_ms < self._held_until_ms

    def next_deadline(self) -> int | None:
        """Return when to call `tick` next; None if only an answer changes anything."""
        times = []
        if self._asked_ms is None and not self._is_stopping:
            times.append(self._next_ask_ms or 0)
        if self.epoch is not None:
            times.append(self._held_until_ms)
        return min(times, default=None)

    def tick(self, now_ms: int) -> list[LeaseEffect]:
        """Return what is to be done by now."""
        effects: list[LeaseEffect] = []
        if self.epoch is not None and now_ms >= self._held_until_ms:
            effects.append(self._step_down("the lease was not renewed in time"))
        if self._next_ask_ms is None:
            self._next_ask_ms = now_ms
        if self._asked_ms is None and now_ms >= self._next_ask_ms and not self._is_stopping:
            self._asked_ms = now_ms
            effects.append(Ask(self._call(), now_ms))
        return effects

    def _call(self) -> Call:
        if self.epoch is not None:
            return Call.RENEW
        has_waited = self._has_seen_free or not self.handicap_ms
        return Call.ACQUIRE if has_waited else Call.LOOK

    def acquired(self, epoch: int, *, asked_ms: int, now_ms: int) -> bool:
        """Note that the lock is ours; return False if the answer came too late to lead."""
        self._asked_ms = None
        self._has_seen_free = False
        held_until_ms = asked_ms + self._config.lease_ms - self._config.margin_ms
        if now_ms >= held_until_ms or self._is_stopping:
            # The lock holds our token: it runs out by itself, and then we may ask again.
            self._next_ask_ms = now_ms + self._config.poll_ms
            return False
        self.epoch = epoch
        self._held_until_ms = held_until_ms
        self._next_ask_ms = asked_ms + self._config.renew_ms
        return True

    def refused(self, *, ttl_ms: int, now_ms: int) -> None:
        """Note that another holds the lock, for so long at most."""
        self._asked_ms = None
        self._has_seen_free = False
        # Not all at the same moment: Redis would answer them one after the other for nothing.
        poll_ms = self._config.poll_ms
        wait_ms = poll_ms + self._rng.randrange(poll_ms // 5 + 1)
        if wait_ms >= ttl_ms:  # free by then
            wait_ms += max(ttl_ms, 1) - poll_ms
        self._next_ask_ms = now_ms + wait_ms

    def seen_free(self, now_ms: int) -> None:
        """Note that nobody holds the lock: if that is still so when the others have had their time
        to take it, it may be ours."""
        self._asked_ms = None
        self._has_seen_free = True
        self._next_ask_ms = now_ms + self.handicap_ms

    def renewed(self, *, asked_ms: int, now_ms: int) -> list[LeaseEffect]:
        """Note that the lock is still ours."""
        self._asked_ms = None
        if self.epoch is None:
            return []
        if not self.is_held(now_ms):  # the answer came after the end
            return [self._step_down("the lease was renewed too late")]
        self._held_until_ms = asked_ms + self._config.lease_ms - self._config.margin_ms
        self._next_ask_ms = asked_ms + self._config.renew_ms
        return []

    def lost(self, now_ms: int, reason: str = "another has the lease") -> list[LeaseEffect]:
        """Note that the lock is another's, or gone: a renewal or any fenced script said so. Or that
        we cannot lead, for another reason."""
        self._asked_ms = None
        self._next_ask_ms = now_ms + self._rng.randrange(self._config.poll_ms)
        return [self._step_down(reason)] if self.epoch is not None else []

    def doubted(self, now_ms: int) -> None:
        """Note that somebody who need not be right says that another leads: ask Redis soon. Whoever
        says so again and again makes us ask little more often than we do."""
        if self.epoch is not None and self._next_ask_ms is not None:
            asked_ms = self._next_ask_ms - self._config.renew_ms
            self._next_ask_ms = min(self._next_ask_ms, max(now_ms, asked_ms + DOUBT_MS))

    def failed(self, now_ms: int) -> None:
        """Note that Redis did not answer: nothing is known, and the clock runs on."""
        self._asked_ms = None
        self._has_seen_free = False
        self._next_ask_ms = now_ms + self._config.poll_ms // 2

    def stop(self) -> list[LeaseEffect]:
        """Ask for nothing more; release the lock once what is under way has ended."""
        self._is_stopping = True
        return [self._step_down("stopping")] if self.epoch is not None else []

    def _step_down(self, reason: str) -> StepDown:
        assert self.epoch is not None
        epoch, self.epoch = self.epoch, None
        return StepDown(epoch, reason)


class BadLock(BadInput):
    """The value of the lock is not ours: another program uses the key."""


@dataclass(frozen=True, slots=True)
class LockValue:
    """What the lock says: where the leader is, so that workers find it."""

    host: str
    port: int
    token: str
    """Random; only the holder knows it, and may renew or release."""
    epoch: int = 0
    """Filled in by the script that takes the lock."""


def parse_lock_value(raw: bytes) -> LockValue:
    """Return what the lock says; raise BadLock."""
    if len(raw) > LOCK_BYTES_MAX:
        raise BadLock(f"a lock of {len(raw)} bytes")
    try:
        value: Any = loads(raw)
    except (ValueError, RecursionError):
        raise BadLock("a lock that is not JSON") from None
    match value:
        case {"host": str(host), "port": int(port), "token": str(token), "epoch": int(epoch)} if (
            # `type`, because true is an int to a pattern, and no port.
            type(port) is type(epoch) is int and 0 < port < 65_536 and epoch >= 0 and host
        ):
            return LockValue(host, port, token, epoch)
    raise BadLock("a lock without host, port, token and epoch")


class Fence:
    """Refuses leaders older than the newest one seen: one for each worker, for all
    connections it ever has.

    A leader that was paused does not know that another took over. Its frames and writes bear its
    epoch, and everything that could be harmed by them remembers the highest one: workers here, the
    output and the source in their scripts.
    """

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def __repr__(self) -> str:
        return f"<Fence at {self.epoch}>"

    def lets(self, epoch: int) -> bool:
        """Say whether something of this epoch is accepted; if it is, nothing older is any more."""
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        return True
