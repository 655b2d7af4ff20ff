"""Whom a secure node has refused, counted: who it does not know, may not, or is over a quota.

Kinds of rights and quotas are counted, and never principals: another issuer may know any number.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from waterclock.model.errors import CapacityReached, Forbidden, NotAuthenticated, QuotaExceeded
from waterclock.security.rights import KINDS
from waterclock.server.statuses import ours

Protocol = Literal["grpc", "http"]

PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")
RATES = {"bytes/s": "bytes_per_s", "requests/s": "requests_per_s", "connections": "connections"}
"""How `Quotas` calls what QuotaExceeded names."""
COUNTS = ("topics", "partitions", "groups", "streams")


class Refusals:
    """Of one node, since it started. All there can be are there from the start, at 0: Prometheus
    sees how much a counter has grown only if it has seen it before."""

    def __init__(self) -> None:
        self.unauthenticated: dict[Protocol, int] = dict.fromkeys(PROTOCOLS, 0)
        self.denied = _zeros(KINDS)
        self.over_quota = _zeros((*RATES.values(), *COUNTS))

    def __repr__(self) -> str:
        denied, over_quota = sum(self.denied.values()), sum(self.over_quota.values())
        unknown = sum(self.unauthenticated.values())
        return f"<Refusals {unknown} unknown, {denied} denied, {over_quota} over a quota>"

    def note(self, error: BaseException, protocol: Protocol) -> None:
        """Count an error that a request ends with, if it is a refusal."""
        found = ours(error)
        if isinstance(found, NotAuthenticated):
            self.unauthenticated[protocol] += 1
        elif isinstance(found, Forbidden):
            self.denied[protocol, found.right] += 1
        elif isinstance(found, QuotaExceeded):
            self.over_quota[protocol, RATES[found.field]] += 1
        elif isinstance(found, CapacityReached):
            # "topics of billing" is a quota, "topics" a bound of the node.
            what, of, _ = found.field.partition(" of ")
            if of and what in COUNTS:
                self.over_quota[protocol, what] += 1


def _zeros(names: Iterable[str]) -> Counter[tuple[str, str]]:
    return Counter({(protocol, name): 0 for protocol in PROTOCOLS for name in names})
