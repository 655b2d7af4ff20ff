"""Which member should own which partition: balanced to within one, and moving as little as can be.

With n partitions and m members, n mod m members have one more than the others. Members keep what
they own up to their share, the lowest first, and those that own most have the larger shares; so
only partitions that a member has too many of, or that have no owner, move. (Kafka's sticky assignor
reaches for the same, for members that subscribe to different topics, at many times the price.)
"""

from collections.abc import Mapping, Sequence


def assign(members: Sequence[str], owners: Sequence[str | None]) -> list[str | None]:
    """Return the owner each partition should have; None for all if there are no members."""
    if not members:
        return [None] * len(owners)
    owned: dict[str, list[int]] = {member: [] for member in sorted(members)}
    free: list[int] = []
    for partition, owner in enumerate(owners):
        (owned[owner] if owner is not None and owner in owned else free).append(partition)
    shares = _shares(owned, len(owners))
    result: list[str | None] = [None] * len(owners)
    vacancies: list[str] = []
    for member, partitions in owned.items():
        share = shares[member]
        for partition in partitions[:share]:
            result[partition] = member
        free += partitions[share:]
        vacancies += [member] * (share - len(partitions))
    for partition, member in zip(sorted(free), vacancies, strict=True):
        result[partition] = member
    return result


def _shares(owned: Mapping[str, Sequence[int]], partitions: int) -> dict[str, int]:
    least, larger = divmod(partitions, len(owned))
    by_most = sorted(owned, key=lambda member: (-len(owned[member]), member))
    return {member: least + (rank < larger) for rank, member in enumerate(by_most)}
