"""Quotas: how fast a principal may go, and how much it may have. Pure: the time is an argument.

Rates are token buckets that hold one second's worth: in any time t a principal gets at most
rate * t + rate. What is larger than the whole bucket needs a full one and leaves a debt, so a
batch of 20 MiB passes at 10 MiB/s, every two seconds. Amounts are counted in thousandths, which a
rate gives out whole each millisecond: nothing is rounded, and nothing drifts.

Who is a little too fast is slowed down before it is refused: bytes may be taken ahead of their time
by those who then wait for it. Refused requests come again, all at once and for nothing.

Counts (topics, partitions, groups, streams) are bounds of what there is; who makes a thing asks
before. A rate that is reached passes with time, and says when (QuotaExceeded). A count does not
(CapacityReached).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from waterclock.model.errors import BadInput, CapacityReached, QuotaExceeded

Counted = Literal["topics", "partitions", "groups", "streams"]

AMOUNT_MAX = 1 << 50
CONNECTIONS = "connections"
CONNECTIONS_RETRY_MS = 1_000
"""When to try again for a connection: nobody knows when one ends."""
LINKS_EACH = 2
"""Of the native protocol for each connection that a principal may have: a client publishes over
one, and calls over another."""

_PER_S = 1_000
"""Thousandths in a unit, and milliseconds in a second: `rate * elapsed_ms` is in thousandths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """What a principal may use; None has no bound but the node's own."""

    bytes_per_s: int | None = None
    requests_per_s: int | None = None
    connections: int | None = None
    topics: int | None = None
    partitions: int | None = None
    groups: int | None = None
    streams: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            if not 0 < value <= AMOUNT_MAX:
                raise BadInput(f"quota {name} must be from 1 to {AMOUNT_MAX}")

    @property
    def has_counts(self) -> bool:
        """Whether some count has a bound."""
        return bool(self.topics or self.partitions or self.groups or self.streams)

    def as_dict(self) -> dict[str, int]:
        """Return those that are set, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


UNBOUNDED = Quotas()


class TokenBucket:
    """A rate: what is taken is refilled evenly, up to one second's worth."""

    __slots__ = ("_at_ms", "_level", "rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        self.rate = rate
        self._level = rate * _PER_S
        self._at_ms = now_ms

    def __repr__(self) -> str:
        return f"<TokenBucket {self._level / _PER_S:g} of {self.rate}>"

    def take(self, amount: int, now_ms: int, *, ahead_ms: int = 0) -> int:
        """Take it if it is there within `ahead_ms`; return after how many ms it is, or will be."""
        full = self.rate * _PER_S
        self._refill(now_ms)
        missing = min(amount * _PER_S, full) - self._level
        wait_ms = max(0, -(-missing // self.rate))
        if wait_ms <= ahead_ms:
            self._level -= amount * _PER_S
        return wait_ms

    def debt_ms(self, now_ms: int) -> int:
        """Return after how many ms all that was taken is paid for."""
        self._refill(now_ms)
        return max(0, -(self._level // self.rate))

    def _refill(self, now_ms: int) -> None:
        # A clock that went back gives nothing, and takes nothing.
        elapsed = max(0, now_ms - self._at_ms)
        self._level = min(self.rate * _PER_S, self._level + self.rate * elapsed)
        self._at_ms += elapsed


class Usage:
    """What one principal uses of its quotas."""

    def __init__(self, principal: str, quotas: Quotas, now_ms: int) -> None:
        self.principal = principal
        self.quotas = quotas
        self.connections = 0
        self.links = 0
        """Connections of the native protocol, bounded by themselves: a client has up to
        `LINKS_EACH` beside that of gRPC, and does not know of two quotas."""
        self.unread = 0
        """Requests that wait for their turn to be read."""
        self._bytes = _bucket(quotas.bytes_per_s, now_ms)
        self._step_ms = 0
        """What the last one cost."""
        self._requests = _bucket(quotas.requests_per_s, now_ms)

    def __repr__(self) -> str:
        return f"<Usage of {self.principal}: {self.quotas.as_dict() or 'no bounds'}>"

    def adopt(self, quotas: Quotas, now_ms: int) -> None:
        """Go by other quotas from now on. A rate that stays the same keeps its bucket as it is: to
        change one quota gives nothing of another."""
        if quotas.bytes_per_s != self.quotas.bytes_per_s:
            self._bytes = _bucket(quotas.bytes_per_s, now_ms)
        if quotas.requests_per_s != self.quotas.requests_per_s:
            self._requests = _bucket(quotas.requests_per_s, now_ms)
        self.quotas = quotas

    def take_request(self, now_ms: int) -> None:
        """Count a request; raises QuotaExceeded if there are too many, and counts nothing then."""
        if self._requests is not None:
            self._exceeded("requests/s", self._requests.rate, self._requests.take(1, now_ms))

    def take_bytes(self, count: int, now_ms: int, *, ahead_ms: int = 0) -> int:
        """Count bytes of messages and return after how many ms they are paid for: the next ones
        should be read no earlier. Raises QuotaExceeded, and counts nothing, if that is more than
        `ahead_ms`."""
        if self._bytes is None:
            return 0
        wait_ms = self._bytes.take(count, now_ms, ahead_ms=ahead_ms)
        self._step_ms = -(-count * _PER_S // self._bytes.rate)
        if wait_ms > ahead_ms:
            self._exceeded("bytes/s", self._bytes.rate, wait_ms)
        return wait_ms

    def turn_ms(self, now_ms: int, *, ahead_ms: int) -> int:
        """Return after how many ms a request of unknown size may be read, behind the `unread` ones;
        raises QuotaExceeded if that is more than `ahead_ms`.

        To read what is refused costs everyone, and all who are refused together come together.
        """
        if self._bytes is None:
            return 0
        wait_ms = self._bytes.debt_ms(now_ms) + self.unread * self._step_ms
        if wait_ms > ahead_ms:
            self._exceeded("bytes/s", self._bytes.rate, wait_ms)
        return wait_ms

    def wait_for_bytes(self, count: int, now_ms: int) -> int:
        """Count bytes and return 0; or count nothing and return after how many ms to ask again.

        For streams that are read more slowly instead of being refused.
        """
        return 0 if self._bytes is None else self._bytes.take(count, now_ms)

    def open_connection(self, *, is_link: bool = False) -> None:
        """Count a connection; raises QuotaExceeded. You must `close_connection` it."""
        limit = self.quotas.connections
        count = self.links // LINKS_EACH if is_link else self.connections
        if limit is not None and count >= limit:
            self._exceeded(CONNECTIONS, limit, CONNECTIONS_RETRY_MS)
        self._count(1, is_link=is_link)

    def close_connection(self, *, is_link: bool = False) -> None:
        """Give back what `open_connection` counted."""
        assert (self.links if is_link else self.connections) > 0
        self._count(-1, is_link=is_link)

    def _count(self, change: int, *, is_link: bool) -> None:
        if is_link:
            self.links += change
        else:
            self.connections += change

    def check_count(self, what: Counted, count: int) -> None:
        """Raise CapacityReached if the principal may not have so many; ask before you make one."""
        limit: int | None = getattr(self.quotas, what)
        if limit is not None and count > limit:
            raise CapacityReached(f"{what} of {self.principal}", limit, got=count)

    def _exceeded(self, what: str, limit: int, wait_ms: int) -> None:
        if wait_ms:
            raise QuotaExceeded(what, limit, principal=self.principal, retry_after_ms=wait_ms)


class UsageTable:
    """The usage of every principal that has asked; one bucket, however many tokens it has."""

    def __init__(self) -> None:
        self._usage: dict[str, Usage] = {}

    def usage_of(self, principal: str, quotas: Quotas, now_ms: int) -> Usage:
        """Return what a principal uses, by its quotas of today."""
        found = self._usage.get(principal)
        if found is None:
            found = self._usage[principal] = Usage(principal, quotas, now_ms)
        elif found.quotas is not quotas:
            found.adopt(quotas, now_ms)
        return found

    def known(self, principal: str, quotas: Quotas) -> Usage | None:
        """Return what a principal uses if it goes by these quotas already, as it nearly always
        does: the time need not be asked for then."""
        found = self._usage.get(principal)
        return found if found is not None and found.quotas is quotas else None

    def forget(self, is_known: Callable[[str], bool]) -> None:
        """Drop who is not known any more and has no connection."""
        for name, usage in list(self._usage.items()):
            if not is_known(name) and usage.connections == usage.links == 0:
                del self._usage[name]


def _bucket(rate: int | None, now_ms: int) -> TokenBucket | None:
    return None if rate is None else TokenBucket(rate, now_ms)
