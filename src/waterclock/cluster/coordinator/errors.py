"""What a coordinator refuses or cannot do; each says what its caller can do next.

CoordinatorUnavailable   nobody answered: it may have happened; read before you write again
CoordinatorRefused       it knows neither us nor our right: mend the configuration
LeaseNotFound            the lease has ended, and its keys with it: grant another
Compacted                the past is gone: read the range again, watch from there
RevisionWentBack         the store was restored from an old copy: stop, and tell people
"""

from waterclock.model.errors import Unavailable, WaterclockError


class CoordinatorUnavailable(Unavailable):
    """No member answered. What was asked may have happened, or may still happen."""


class CoordinatorRefused(WaterclockError):
    """The coordinator does not know the user, or the user has no right to these keys."""


class LeaseNotFound(WaterclockError):
    """The lease has ended or was revoked, and its keys are gone; nothing was changed now."""

    def __init__(self, lease: int) -> None:
        super().__init__(f"there is no lease {lease:016x}: it has ended, and its keys are gone")
        self.lease = lease


class Compacted(WaterclockError):
    """Changes from the revision on are no longer known: read the range, watch from there."""

    def __init__(self, *, wanted: int, compacted: int) -> None:
        super().__init__(
            f"changes from revision {wanted} on are wanted, those up to {compacted} are compacted"
        )
        self.wanted = wanted
        self.compacted = compacted


class RevisionWentBack(WaterclockError):
    """The store forgot what it had acknowledged, as one restored from an old snapshot has.

    Nothing it says can be trusted: two leaders may have been given the same epoch. The client
    refuses everything from then on.
    """

    def __init__(self, *, seen: int, found: int) -> None:
        super().__init__(
            f"the coordinator is at revision {found} and was at {seen}: it was restored from an"
            " old snapshot; compare the epochs of all partitions before you start nodes again"
        )
        self.seen = seen
        self.found = found


class BadRecord(WaterclockError):
    """What is stored at a key is no record of ours, or of a later version."""

    def __init__(self, key: bytes, problem: str) -> None:
        super().__init__(f"the record at {key.decode(errors='backslashreplace')!r}: {problem}")
        self.key = key
